"""Explains a URL: which rule takes or drops it, and by which submissions, without writing anything."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.core import shards
from pipelines.core.config import identity_of
from pipelines.core.errors import UsageError
from pipelines.core.manifest import Identity
from pipelines.core.run import RunOptions
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.link_lookup import LinkInResult, find_in_result, find_scores
from pipelines.stages.scrape.linter import month_reports, unusable_months
from pipelines.stages.scrape.outcome import (
    FETCHED,
    KEPT,
    MERGED,
    NOT_FOUND,
    PENDING,
    Outcome,
    outcome_of,
    tried_options,
    ways_to_take,
)
from pipelines.stages.scrape.selection import Selection, make_selection, resolved
from pipelines.stages.scrape.sources import SourceFile, find_files, with_standard_input
from pipelines.stages.scrape.stage import STAGE, named_dumps, rule_inputs, score_input
from pipelines.stages.scrape.submission import RawSubmission
from pipelines.stages.scrape.submission_rows import bucket_of_domain
from pipelines.stages.scrape.survey import (
    FileSurvey,
    FoundSubmission,
    SurveyTask,
    near_urls,
    require_files_source,
    survey_file,
    survey_files,
)
from pipelines.stages.scrape.url_lists import check_url_column


@dataclasses.dataclass(frozen=True)
class ExplainedSubmission:
    """A submission of the URL, and what became of it in the words of the funnel, or `kept`; time in seconds, UTC."""

    file: str
    line: int
    id: str
    subreddit: str
    created_utc: int
    score: int | None
    became: str


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the scrape makes of a URL.

    `rule` is what drops the URL whoever submits it. `submissions` begins with those that make the link. `taken` is None
    where it depends on scores that are still to be fetched. `near` has the number of submissions of each URL that
    differs only in its scheme, `www.` or final slash.
    """

    url: str
    canonical_url: str
    domain: str
    shard: str
    rule: str | None
    source: str
    files: int
    lines: int
    taken: bool | None
    score: int | None
    verdict: str
    taken_with: tuple[str, ...]
    notes: tuple[str, ...]
    submissions: tuple[ExplainedSubmission, ...]
    near: dict[str, int]
    result: LinkInResult | None

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return dataclasses.asdict(self)


def explain(config: ScrapeConfig, url: str, *, dumps: Sequence[str], output: str, options: RunOptions) -> Explanation:
    """Tell which rule takes or drops a URL, and by which of the submissions in some dumps or lists of URLs.

    `output` is where a finished result is looked at. Raises UsageError for a text that is no http(s) URL and for a
    source that is not made of files, InputError for files that hold no submissions.
    """
    require_files_source(config, "--explain")
    canonical = canonical_url(url)
    domain = None if canonical is None else registered_domain(canonical)
    if canonical is None or domain is None:
        raise UsageError(f"--explain {url}: is no http(s) URL; give a whole one, such as http://example.com/page")
    selection = make_selection(config)
    surveys = _read(config, canonical, dumps, output, options)
    fresh = _fresh_months(surveys, config, selection)
    found = [each for survey in surveys for each in survey.found]
    found, waiting = _with_fetched_scores(found, fresh, config, output)
    submissions = [each.submission for each in found]
    outcome = outcome_of(submissions, waiting, selection)
    taken = True if outcome.score is not None else None if PENDING in outcome.reasons else False
    ways = ways_to_take(submissions, waiting, config) if found and taken is False else []
    return Explanation(
        url=url,
        canonical_url=canonical,
        domain=domain,
        shard=shards.shard_name("links", bucket_of_domain(domain, config.shards)),
        rule=_rule_against(url, selection),
        source=config.source,
        files=len(surveys),
        lines=sum(survey.stats.lines for survey in surveys),
        taken=taken,
        score=outcome.score,
        verdict=_verdict(outcome, config, selection, ways) if found else _not_found(surveys),
        taken_with=tuple(ways),
        notes=(*_notes_of_files(surveys, config), *_notes_of_months(submissions, fresh, config)),
        submissions=tuple(_explained(found, outcome)),
        near=_near(surveys),
        result=find_in_result(
            output, canonical, domain, _identity(config, selection, [survey.file for survey in surveys])
        ),
    )


def _read(
    config: ScrapeConfig, canonical: str, dumps: Sequence[str], output: str, options: RunOptions
) -> list[FileSurvey]:
    with with_standard_input(named_dumps(dumps), output) as paths:
        files = find_files(paths, config.source)
        check_url_column(config.url_column, files)
        near = near_urls(canonical)
        tasks = [SurveyTask(file, config.source, config.url_column, canonical, near) for file in files]
        return survey_files("explain: read", survey_file, tasks, options)


def _identity(config: ScrapeConfig, selection: Selection, files: Sequence[SourceFile]) -> Identity:
    inputs = rule_inputs(selection) | {file.label: file.fingerprint for file in files} | score_input(config)
    return Identity(STAGE.name, STAGE.version, identity_of(resolved(config)), inputs)


def _rule_against(url: str, selection: Selection) -> str | None:
    """Return the rule that drops a URL whoever submits it, and when."""
    alone = RawSubmission("", 0, url, None, "", "", over_18=False, is_self=False, promoted=False)
    return selection.judge_url(alone).reason


def _fresh_months(surveys: Sequence[FileSurvey], config: ScrapeConfig, selection: Selection) -> dict[str, str]:
    """Return the months whose scores look taken at ingestion, with the reason."""
    reports = month_reports([(survey.file.label, survey.stats) for survey in surveys], config.source)
    return {report.month: report.problem or "" for report in unusable_months(reports, selection)}


def _with_fetched_scores(
    found: list[FoundSubmission], fresh: dict[str, str], config: ScrapeConfig, output: str
) -> tuple[list[FoundSubmission], list[str | None]]:
    """Return the submissions with the scores that a finished result fetched anew, and how far each of them is."""
    if not config.refresh_scores:
        return found, [None] * len(found)
    scores = find_scores(output, config.refresh_scores, {each.submission.id for each in found})
    with_scores, waiting = [], []
    for each in found:
        waits = None
        if _month(each.submission) in fresh:
            score = scores.get(each.submission.id)
            waits = FETCHED if score is not None else NOT_FOUND if each.submission.id in scores else PENDING
            if waits != PENDING:
                each = dataclasses.replace(each, submission=each.submission._replace(score=score))
        with_scores.append(each)
        waiting.append(waits)
    return with_scores, waiting


def _month(submission: RawSubmission) -> str:
    return dt.datetime.fromtimestamp(submission.created_utc, dt.UTC).strftime("%Y-%m")


def _explained(found: Sequence[FoundSubmission], outcome: Outcome) -> list[ExplainedSubmission]:
    """Return the submissions: those of the link in its order, then the others by time."""
    place = {number: at for at, number in enumerate(outcome.members)}

    def order(number: int) -> tuple[int, int, str]:
        submission = found[number].submission
        return place.get(number, len(place)), submission.created_utc, submission.id

    return [
        ExplainedSubmission(
            found[number].file,
            found[number].line,
            (submission := found[number].submission).id,
            submission.subreddit,
            submission.created_utc,
            submission.score,
            outcome.reasons[number],
        )
        for number in sorted(range(len(found)), key=order)
    ]


def _verdict(outcome: Outcome, config: ScrapeConfig, selection: Selection, ways: Sequence[str]) -> str:
    counts = Counter(outcome.reasons)
    pending = counts[PENDING]
    later = f"{_number(pending, 'submission')} after --refresh-scores {config.refresh_scores} fetched the score"
    if outcome.score is not None:
        size = len(outcome.members)
        if config.source == "urls":
            return f"taken: link without a score, listed {size:,} times" if size > 1 else "taken: link without a score"
        how = f"{selection.karma} of {size:,} submissions" if size > 1 else "1 submission"
        return f"taken: link with score {outcome.score:,} ({how})" + (f"; and {later}" if pending else "")
    if pending:
        return f"open: judges {later}"
    reasons = ", ".join(reason if len(counts) == 1 else f"{reason} {count:,}" for reason, count in counts.most_common())
    way = f"{', or '.join(ways)} would take it" if ways else f"no other {_any_of(tried_options(config))} takes it"
    return f"dropped: {reasons}; {way}"


def _any_of(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _near(surveys: Sequence[FileSurvey]) -> dict[str, int]:
    near = sum((survey.near for survey in surveys), Counter[str]())
    return dict(sorted(near.items(), key=lambda item: (-item[1], item[0])))


def _not_found(surveys: Sequence[FileSurvey]) -> str:
    lines = sum(survey.stats.lines for survey in surveys)
    return f"no submission of it in {_number(lines, 'line')} of {_number(len(surveys), 'file')}"


def _notes_of_files(surveys: Sequence[FileSurvey], config: ScrapeConfig) -> list[str]:
    then = "what could be read of it is used" if config.skip_damaged else "scrape needs --skip-damaged to use the rest"
    problems = [survey.stats.problem(survey.file.path) for survey in surveys]
    return [f"{problem}; {then}" for problem in problems if problem]


def _notes_of_months(submissions: Sequence[RawSubmission], fresh: dict[str, str], config: ScrapeConfig) -> list[str]:
    if config.refresh_scores:
        then = f"--refresh-scores {config.refresh_scores} fetches them again"
    elif config.accept_fresh_scores:
        then = "accepted as they are"
    else:
        then = "scrape refuses the month without --refresh-scores or --accept-fresh-scores"
    months = sorted({month for each in submissions if (month := _month(each)) in fresh})
    return [f"the scores of {month} look taken at ingestion: {fresh[month]}; {then}" for month in months]


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counts_of(submissions: Sequence[ExplainedSubmission]) -> dict[str, int]:
    """Return how many submissions became what, those of the link first."""
    counts = Counter(each.became for each in submissions)
    first = {name: counts[name] for name in (KEPT, MERGED) if counts[name]}
    return first | dict(counts.most_common())
