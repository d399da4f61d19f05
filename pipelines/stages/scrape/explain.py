"""Explains a URL: which rule keeps or drops it, and by which submissions, without writing anything."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.engine.config import identity_of
from pipelines.engine.manifest import Identity
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.link_lookup import LinkInResult, find_link, find_scores
from pipelines.stages.scrape.month_reports import make_month_reports, unusable_months
from pipelines.stages.scrape.outcome import (
    FETCHED,
    KEPT,
    MERGED,
    NOT_FOUND,
    PENDING,
    Outcome,
    ScoredSubmission,
    outcome_of,
    suggest_changes,
    tried_options,
)
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.stage import STAGE, rule_inputs, score_input
from pipelines.stages.scrape.submission import Submission
from pipelines.stages.scrape.submission_filter import SubmissionFilter, make_filter, resolve_config
from pipelines.stages.scrape.submission_rows import bucket_of_domain
from pipelines.stages.scrape.survey import FileSurvey, Match, check_files_source, survey_dumps


@dataclasses.dataclass(frozen=True)
class ExplainedSubmission:
    """A submission of the URL; `outcome` is the reason of its drop in the funnel, or `kept`. Time in seconds, UTC."""

    file: str
    line: int
    id: str
    subreddit: str
    created_utc: int
    score: int | None
    outcome: str


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The outcome of a URL in a scrape.

    `rule` is what drops the URL whoever submits it; `shard` is None if the URL does not become a link. `submissions`
    begins with those that make the link. `is_kept` is None where it depends on scores that are not fetched yet. `near`
    has the number of submissions of each URL that differs only in its scheme, `www.` or final slash.
    """

    url: str
    canonical_url: str
    domain: str
    shard: str | None
    rule: str | None
    source: str
    files: int
    lines: int
    is_kept: bool | None
    score: int | None
    verdict: str
    suggestions: tuple[str, ...]
    notes: tuple[str, ...]
    submissions: tuple[ExplainedSubmission, ...]
    near: dict[str, int]
    result: LinkInResult | None

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return dataclasses.asdict(self)


def explain(config: ScrapeConfig, url: str, *, dumps: Sequence[str], output: str, options: RunOptions) -> Explanation:
    """Find which rule keeps or drops a URL, and by which of the submissions in some dumps or lists of URLs.

    A finished result in `output` is looked up too. Raises UsageError for a text that is not an http(s) URL and for a
    source that is not made of files, InputError for files that contain no submissions.
    """
    check_files_source(config, "--explain")
    canonical = canonical_url(url)
    domain = None if canonical is None else registered_domain(canonical)
    if canonical is None or domain is None:
        raise UsageError(f"--explain {url}: not an http(s) URL; give a complete one, such as http://example.com/page")
    filter = make_filter(config)
    surveys = survey_dumps("explain", config, canonical, dumps=dumps, output=output, options=options)
    files = [survey.file for survey in surveys]
    fresh = _fresh_months(surveys, config, filter)
    matches = [match for survey in surveys for match in survey.matches]
    scored = _with_fetched_scores([match.submission for match in matches], fresh, config, output)
    outcome = outcome_of(scored, filter)
    is_kept = True if outcome.score is not None else None if PENDING in outcome.reasons else False
    suggestions = suggest_changes(scored, config) if matches and is_kept is False else []
    return Explanation(
        url=url,
        canonical_url=canonical,
        domain=domain,
        shard=None if is_kept is False else shards.shard_name("links", bucket_of_domain(domain, config.shards)),
        rule=filter.apply_to_url(Submission(id="", created_utc=0, url=url)).reason,
        source=config.source,
        files=len(files),
        lines=sum(survey.stats.lines for survey in surveys),
        is_kept=is_kept,
        score=outcome.score,
        verdict=_verdict(outcome, config, filter, suggestions) if matches else _not_found(surveys),
        suggestions=tuple(suggestions),
        notes=(*_file_notes(surveys, config), *_month_notes(matches, fresh, config)),
        submissions=tuple(_explained(matches, scored, outcome)),
        near=_near(surveys),
        result=find_link(output, canonical, domain, _identity(config, filter, files)),
    )


def _identity(config: ScrapeConfig, filter: SubmissionFilter, files: Sequence[SourceFile]) -> Identity:
    inputs = rule_inputs(filter) | {file.label: file.fingerprint for file in files} | score_input(config)
    return Identity(STAGE.name, STAGE.version, identity_of(resolve_config(config)), inputs)


def _fresh_months(surveys: Sequence[FileSurvey], config: ScrapeConfig, filter: SubmissionFilter) -> dict[str, str]:
    """Return the months whose scores look recorded at ingestion, with the reason."""
    reports = make_month_reports([(survey.file.label, survey.stats) for survey in surveys], config.source)
    return {report.month: report.problem or "" for report in unusable_months(reports, filter)}


def _with_fetched_scores(
    submissions: Sequence[Submission], fresh: dict[str, str], config: ScrapeConfig, output: str
) -> list[ScoredSubmission]:
    """Return the submissions with the scores that a finished result re-fetched."""
    if not config.refresh_scores:
        return [ScoredSubmission(submission) for submission in submissions]
    scores = find_scores(output, config.refresh_scores, {submission.id for submission in submissions})

    def with_score(submission: Submission) -> ScoredSubmission:
        if _month(submission) not in fresh:
            return ScoredSubmission(submission)
        if submission.id not in scores:
            return ScoredSubmission(submission, PENDING)
        score = scores[submission.id]
        refreshed = msgspec.structs.replace(submission, score=score)
        return ScoredSubmission(refreshed, NOT_FOUND if score is None else FETCHED)

    return [with_score(submission) for submission in submissions]


def _month(submission: Submission) -> str:
    return dt.datetime.fromtimestamp(submission.created_utc, dt.UTC).strftime("%Y-%m")


def _explained(
    matches: Sequence[Match], scored: Sequence[ScoredSubmission], outcome: Outcome
) -> list[ExplainedSubmission]:
    """Return the submissions: those of the link in its order, then the others by time."""
    position = {number: index for index, number in enumerate(outcome.members)}

    def order(number: int) -> tuple[int, int, str]:
        submission = scored[number].submission
        return position.get(number, len(position)), submission.created_utc, submission.id

    return [
        ExplainedSubmission(
            file=matches[number].file,
            line=matches[number].line,
            id=scored[number].submission.id,
            subreddit=scored[number].submission.subreddit,
            created_utc=scored[number].submission.created_utc,
            score=scored[number].submission.score,
            outcome=outcome.reasons[number],
        )
        for number in sorted(range(len(matches)), key=order)
    ]


def _verdict(outcome: Outcome, config: ScrapeConfig, filter: SubmissionFilter, suggestions: Sequence[str]) -> str:
    counts = Counter(outcome.reasons)
    pending = counts[PENDING]
    later = f"{plural(pending, 'submission')} after --refresh-scores {config.refresh_scores} fetched the score"
    if outcome.score is not None:
        size = len(outcome.members)
        if config.source == "urls":
            return f"kept: link without a score, listed {size:,} times" if size > 1 else "kept: link without a score"
        how = f"{filter.karma} of {size:,} submissions" if size > 1 else "1 submission"
        return f"kept: link with score {outcome.score:,} ({how})" + (f"; and {later}" if pending else "")
    if pending:
        return f"open: depends on {later}"
    reasons = ", ".join(reason if len(counts) == 1 else f"{reason} {count:,}" for reason, count in counts.most_common())
    if suggestions:
        return f"dropped: {reasons}; would be kept with {_alternatives(suggestions)}"
    return f"dropped: {reasons}; no other value of {_alternatives(tried_options(config))} would keep it"


def _alternatives(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _near(surveys: Sequence[FileSurvey]) -> dict[str, int]:
    near = sum((survey.near for survey in surveys), Counter[str]())
    return dict(sorted(near.items(), key=lambda item: (-item[1], item[0])))


def _not_found(surveys: Sequence[FileSurvey]) -> str:
    lines = sum(survey.stats.lines for survey in surveys)
    return f"no submission of it in {plural(lines, 'line')} of {plural(len(surveys), 'file')}"


def _file_notes(surveys: Sequence[FileSurvey], config: ScrapeConfig) -> list[str]:
    then = "the readable part is used" if config.skip_damaged else "scrape needs --skip-damaged to use the rest"
    problems = [survey.stats.problem(survey.file.path) for survey in surveys]
    return [f"{problem}; {then}" for problem in problems if problem]


def _month_notes(matches: Sequence[Match], fresh: dict[str, str], config: ScrapeConfig) -> list[str]:
    if config.refresh_scores:
        then = f"--refresh-scores {config.refresh_scores} re-fetches them"
    elif config.accept_fresh_scores:
        then = "accepted"
    else:
        then = "scrape refuses the month without --refresh-scores or --accept-fresh-scores"
    months = sorted({month for match in matches if (month := _month(match.submission)) in fresh})
    return [f"the scores of {month} look recorded at ingestion: {fresh[month]}; {then}" for month in months]


def outcome_counts(submissions: Sequence[ExplainedSubmission]) -> dict[str, int]:
    """Return the number of submissions by outcome, those of the link first."""
    counts = Counter(submission.outcome for submission in submissions)
    first = {name: counts[name] for name in (KEPT, MERGED) if counts[name]}
    return first | dict(counts.most_common())
