"""`--explain`: reads the source files as a scrape does to find which rule keeps or drops a URL; writes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, id_of_url, near_urls, registered_domain
from pipelines.engine.config import identity_of
from pipelines.engine.manifest import Identity, has_manifest, read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.format import plural
from pipelines.progress import show_progress
from pipelines.records import shards
from pipelines.records.removals import LIST, read_removals
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.decision import (
    FilterResult,
    Link,
    SubmissionFilter,
    make_filter,
    reaches_minimum,
    resolve_config,
)
from pipelines.stages.scrape.merge import bucket_of_domain, distinct_by_url, link_scores, submission_batch
from pipelines.stages.scrape.reports import FileStats, make_month_reports, month_of, name_late_months, unusable_months
from pipelines.stages.scrape.sources import SourceFile, open_sources, read_file
from pipelines.stages.scrape.stage import SCORE_INPUT, STAGE, run_inputs
from pipelines.stages.scrape.submission import Rejects, Submission

_KEPT, _MERGED, _PENDING = "kept", "merged_into_link", "score_to_fetch"


class SurveyContext(NamedTuple):
    """How files are read, and the canonical URL to find; submissions of URLs `near` it are counted."""

    config: ScrapeConfig
    url: str
    near: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FileSurvey:
    """What one file contains: its counts, and the submissions of the URL with their lines from 1.

    In a list of URLs, the line is the number of the URL.
    """

    file: SourceFile
    stats: FileStats
    matches: list[tuple[int, Submission]]
    near: Counter[str]


def survey_file(file: SourceFile, context: SurveyContext) -> FileSurvey:
    """Read one file; a damaged one ends early, which its stats say."""
    config, wanted, near = context
    survey = FileSurvey(file, FileStats(), [], Counter())
    for numbers, submissions in read_file(file, config, survey.stats, Rejects(file.label)):
        for number, submission in zip(numbers, submissions, strict=True):
            url = canonical_url(submission.url) if submission.url is not None else None
            if url == wanted:
                survey.matches.append((number, submission))
            elif url in near:
                survey.near[str(url)] += 1
    return survey


def _survey_files(
    config: ScrapeConfig, url: str, dumps: Sequence[str], output: str, options: RunOptions
) -> list[FileSurvey]:
    """Read all files with a progress bar and return their surveys in order; `url` is canonical.

    Standard input is stored next to `output` meanwhile. Raises InputError for a list of URLs without the column,
    UsageError for a source that is an API, which a command that only reads does not query.
    """
    if not config.needs_files:
        raise UsageError(
            f"--explain reads files, and --source {config.source} queries an API; scrape first, then name the "
            "listing-NNNNN.ndjson.zst that it keeps as a dump"
        )
    with open_sources(config, dumps, output, options.progress.note) as files:
        context = SurveyContext(config, url, near_urls(url))
        progress, total = options.progress, sum(file.size_bytes for file in files)
        surveys = options.executor.map(survey_file, files, context, progress.advance, lambda file: file.label)
        with show_progress(progress, "explain: read", total, "bytes"), contextlib.closing(surveys) as finished:
            by_label = {file.label: survey for file, survey in finished}
        return [by_label[file.label] for file in files]


def explain(
    config: ScrapeConfig, url: str, *, dumps: Sequence[str], output: str, options: RunOptions
) -> dict[str, Any]:
    """Find which rule keeps or drops a URL, and by which of the submissions in some dumps or lists of URLs.

    A finished result in `output` is looked up too (`result`). Returns JSON values: `rule` is what drops the URL whoever
    submits it; `shard` is None if the URL does not become a link; `is_kept` is None where it depends on scores that are
    not fetched yet. `submissions` begins with those that make the link; their `outcome` is the reason of the drop in
    the funnel, or `kept`. `near` has the number of submissions of each URL that differs only in its scheme, `www.` or
    final slash. Raises UsageError for a text that is not an http(s) URL and for a source that is not made of files.
    """
    canonical = canonical_url(url)
    domain = None if canonical is None else registered_domain(canonical)
    if canonical is None or domain is None:
        raise UsageError(f"--explain {url}: not an http(s) URL; give a complete one, such as http://example.com/page")
    filter = make_filter(config)
    surveys = _survey_files(config, canonical, dumps, output, options)
    months = make_month_reports([(survey.file.label, survey.stats) for survey in surveys], config.source)
    fresh = unusable_months(months, filter)
    matches = [(survey.file.label, *match) for survey in surveys for match in survey.matches]
    matches.sort(key=lambda match: (match[2].created_utc, match[2].id))
    scores: dict[str, int | None] = {}
    if config.refresh_scores:
        scores = _find_scores(output, config.refresh_scores, {submission.id for _, _, submission in matches})
    refreshed = fresh.keys() if config.refresh_scores else ()
    filtered = [
        _filter_submission(submission, filter, scores if month_of(submission.created_utc) in refreshed else None)
        for _, _, submission in matches
    ]
    outcomes, members, score = _merge(filtered, filter)
    is_kept = True if score is not None else None if _PENDING in outcomes else False

    submissions = []
    for number, (file, line, _) in enumerate(matches):
        post, _ = filtered[number]
        fields = {name: getattr(post, name) for name in ("id", "subreddit", "created_utc", "score")}
        submissions.append({"file": file, "line": line, **fields, "outcome": outcomes[number]})
    lines = sum(survey.stats.lines for survey in surveys)
    verdict = f"not found in {plural(lines, 'line')} of {plural(len(surveys), 'file')}"
    near = sum((survey.near for survey in surveys), Counter[str]())
    url_filter = SubmissionFilter(filter.profile, filter.karma, min_score=None, min_link_score=None, needs_score=False)
    rules, files = run_inputs(config, filter, [survey.file for survey in surveys])
    identity = Identity(STAGE.name, STAGE.version, identity_of(resolve_config(config)), rules | files)
    removal = read_removals(storage.parent(output)).find_row({"url": canonical, "id": id_of_url(canonical)})
    return {
        "url": url,
        "canonical_url": canonical,
        "domain": domain,
        "shard": None if is_kept is False else shards.shard_name("links", bucket_of_domain(domain, config.shards)),
        "rule": url_filter.apply(Submission(id="", created_utc=0, url=url)).reason,
        "source": config.source,
        "files": len(surveys),
        "lines": lines,
        "is_kept": is_kept,
        "score": score,
        "verdict": _verdict(Counter(outcomes), score, config, filter) if matches else verdict,
        "notes": _notes(surveys, fresh, config) + [f"{LIST} drops this URL from the corpus"] * (removal is not None),
        "submissions": [submissions[number] for number in dict.fromkeys([*members, *range(len(matches))])],
        "near": dict(sorted(near.items(), key=lambda item: (-item[1], item[0]))),
        "result": _find_link(output, canonical, domain, identity),
    }


def _filter_submission(
    submission: Submission, filter: SubmissionFilter, scores: Mapping[str, int | None] | None
) -> Link:
    """Filter a submission as the scrape does; return it with its score.

    For one of a month whose scores are re-fetched, `scores` are the known ones by id, None for those without one.
    """
    if scores is not None:
        # A score is only fetched for a submission that passes everything else.
        result = filter.without_score().apply(submission)
        if result.reason is not None:
            return submission, result
        if submission.id not in scores:
            return submission, FilterResult(_PENDING)
        submission = msgspec.structs.replace(submission, score=scores[submission.id])
        if submission.score is None:
            return submission, FilterResult("score_not_found")
    return submission, filter.apply(submission)


def _merge(filtered: Sequence[Link], filter: SubmissionFilter) -> tuple[list[str], list[int], int | None]:
    """Merge submissions that have the same canonical URL, as the scrape does.

    Returns the outcome of each, and if they make a link, the numbers of those that it is merged from, and its score.
    """
    outcomes = [result.reason or "duplicate_submission" for _, result in filtered]
    passed = [number for number, (_, result) in enumerate(filtered) if result.reason is None]
    if not passed:
        return outcomes, [], None
    rows = submission_batch([filtered[number] for number in passed])
    groups = distinct_by_url(rows)
    members = [passed[row] for row in groups.rows.tolist()]
    score = int(link_scores(rows, groups, filter.karma)[0])
    is_link = reaches_minimum(score, filter.min_link_score)
    for number in members:
        outcomes[number] = _MERGED if is_link else "low_score"
    if not is_link:
        return outcomes, [], None
    outcomes[members[0]] = _KEPT
    return outcomes, members, score


def _verdict(outcomes: Counter[str], score: int | None, config: ScrapeConfig, filter: SubmissionFilter) -> str:
    pending = outcomes[_PENDING]
    later = f"{plural(pending, 'submission')} after --refresh-scores {config.refresh_scores} fetched the score"
    if score is not None:
        size = outcomes[_KEPT] + outcomes[_MERGED]
        if config.source == "urls":
            return f"kept: link without a score, listed {size:,} times" if size > 1 else "kept: link without a score"
        how = f"{filter.karma} of {size:,} submissions" if size > 1 else "1 submission"
        return f"kept: link with score {score:,} ({how})" + (f"; and {later}" if pending else "")
    if pending:
        return f"open: depends on {later}"
    if len(outcomes) == 1:
        return f"dropped: {next(iter(outcomes))}"
    return f"dropped: {', '.join(f'{reason} {count:,}' for reason, count in outcomes.most_common())}"


def _notes(surveys: Sequence[FileSurvey], fresh: Mapping[str, str], config: ScrapeConfig) -> list[str]:
    """Return notes on damaged files, and on months of the submissions whose scores cannot be used."""
    then = "the readable part is used" if config.skip_damaged else "scrape needs --skip-damaged to use the rest"
    problems = [survey.stats.problem(survey.file.path) for survey in surveys]
    notes = [f"{problem}; {then}" for problem in problems if problem]
    if config.refresh_scores:
        then = f"--refresh-scores {config.refresh_scores} re-fetches them"
    elif config.accept_fresh_scores:
        then = "accepted"
    else:
        then = "scrape refuses the month without --refresh-scores or --accept-fresh-scores"
    months = {month_of(submission.created_utc) for survey in surveys for _, submission in survey.matches}
    notes += name_late_months(sorted(months), make_filter(config))
    return notes + [
        f"the scores of {month} look recorded at ingestion: {fresh[month]}; {then}"
        for month in sorted(months & fresh.keys())
    ]


def _find_link(folder: str, url: str, domain: str, identity: Identity) -> dict[str, Any] | None:
    """Look up a canonical URL in a finished folder; None without one.

    The link is None if it is not there; `differences` are those of the result from a scrape now, of this `identity`.
    """
    if not has_manifest(folder) or (recorded := read_manifest(folder).identity).stage != identity.stage:
        return None
    shard = shards.shard_name("links", bucket_of_domain(domain, int(recorded.config["shards"])))
    batches = shards.read_batches(storage.join(folder, shard))
    links = (batch.filter(pc.equal(batch.column("url"), url)).to_pylist() for batch in batches)
    link = next((matches[0] for matches in links if matches), None)
    differences = recorded.with_current_options(ScrapeConfig).differences(identity)
    return {"folder": folder, "shard": shard, "link": link, "differences": differences}


def _find_scores(folder: str, service: str, ids: Collection[str]) -> dict[str, int | None]:
    """Return the scores of some ids that a finished result re-fetched from a service; None for unknown ids."""
    if not has_manifest(folder) or read_manifest(folder).identity.inputs.get(SCORE_INPUT) != service:
        return {}
    scores: dict[str, int | None] = {}
    requested = pa.array(sorted(ids), pa.string())
    for batch in shards.read_batches(storage.join(folder, shards.shard_name("scores", 0)), ["id", "score"]):
        rows = batch.filter(pc.is_in(batch.column("id"), requested))
        scores |= dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return scores
