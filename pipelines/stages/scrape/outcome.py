"""The outcome of the submissions of one URL, by the rules of reading and merging, and which options would change it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.errors import UsageError
from pipelines.stages.scrape.config import KARMA, PROFILES, ScrapeConfig
from pipelines.stages.scrape.merge import distinct_by_url, link_scores
from pipelines.stages.scrape.submission import Submission
from pipelines.stages.scrape.submission_filter import FilterResult, SubmissionFilter, make_filter
from pipelines.stages.scrape.submission_rows import submission_batch

KEPT, MERGED, DUPLICATE, LOW_SCORE = "kept", "merged_into_link", "duplicate_submission", "low_score"
# Of a submission whose score is re-fetched: not fetched yet, fetched, or unknown to the service.
PENDING, FETCHED, NOT_FOUND = "score_to_fetch", "score_fetched", "score_not_found"

LAXEST_PROFILE = "none"
_MAX_SUGGESTIONS = 3
# There are many pairs of changes; for a URL with more submissions only single ones are tried.
_MAX_SUBMISSIONS_FOR_PAIRS = 10_000


@dataclasses.dataclass(frozen=True)
class ScoredSubmission:
    """A submission; for one of a month whose scores are re-fetched, `fetch` is PENDING, FETCHED or NOT_FOUND.

    If it is FETCHED, the submission has the new score.
    """

    submission: Submission
    fetch: str | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The reason for each submission, and the link: its score, and the submissions that it is merged from.

    Reasons are those of the funnel; `kept` is the earliest submission of the link, whose title it has. Without a link,
    `score` is None and `members` is empty.
    """

    reasons: tuple[str, ...]
    score: int | None = None
    members: tuple[int, ...] = ()


def outcome_of(submissions: Sequence[ScoredSubmission], filter: SubmissionFilter) -> Outcome:
    """Filter and merge submissions that have the same canonical URL, as the scrape does."""
    results = [_filter_scored(scored, filter) for scored in submissions]
    reasons = [result.reason or KEPT for result in results]
    passed = [number for number, result in enumerate(results) if result.reason is None]
    if not passed:
        return Outcome(tuple(reasons))
    rows = submission_batch([(submissions[number].submission, results[number]) for number in passed])
    groups = distinct_by_url(rows)
    members = tuple(passed[row] for row in groups.rows.tolist())
    score = int(link_scores(rows, groups, filter.karma)[0])
    is_link = filter.min_link_score is None or score >= filter.min_link_score
    for number in passed:
        reasons[number] = DUPLICATE
    for number in members:
        reasons[number] = MERGED if is_link else LOW_SCORE
    if not is_link:
        return Outcome(tuple(reasons))
    reasons[members[0]] = KEPT
    return Outcome(tuple(reasons), score, members)


def _filter_scored(scored: ScoredSubmission, filter: SubmissionFilter) -> FilterResult:
    submission = scored.submission
    if scored.fetch is None:
        return filter.apply(submission)
    # A score is only fetched for a submission that passes everything else.
    result = filter.without_score().apply(submission)
    if result.reason is not None:
        return result
    if scored.fetch != FETCHED:
        return FilterResult(scored.fetch)
    is_low = filter.min_score is not None and (submission.score or 0) < filter.min_score
    return FilterResult(LOW_SCORE) if is_low else result


def suggest_changes(submissions: Sequence[ScoredSubmission], config: ScrapeConfig) -> list[str]:
    """Return the changes of options with which a URL's submissions would make a link, empty if there are none.

    First single changes are tried, then pairs, then the most permissive options, without those that are not needed.
    `config` is the user's, before the defaults of its profile are applied.
    """
    changes = list(_changes(config))
    for size in (1, 2) if len(submissions) <= _MAX_SUBMISSIONS_FOR_PAIRS else (1,):
        suggestions = []
        for combination in itertools.combinations(changes, size):
            fields = {name: value for change in combination for name, value in change.items()}
            if len(fields) == size and (suggestion := _try_change(submissions, config, fields)):
                suggestions.append(suggestion)
        if suggestions:
            return suggestions[: _MAX_SUGGESTIONS if size == 1 else 1]
    suggestion = _try_many_changes(submissions, config, changes)
    return [suggestion] if suggestion else []


def _try_many_changes(
    submissions: Sequence[ScoredSubmission], config: ScrapeConfig, changes: Sequence[Mapping[str, Any]]
) -> str | None:
    # Nothing is more permissive than no rules and no limits: if this drops the URL, every change does.
    fields = {name: value for change in changes for name, value in change.items() if name != "karma"}
    fields["profile"] = LAXEST_PROFILE
    suggestion = _try_change(submissions, config, fields)
    for name in list(fields) if suggestion else []:
        fewer = {other: value for other, value in fields.items() if other != name}
        if shorter := _try_change(submissions, config, fewer):
            suggestion, fields = shorter, fewer
    return suggestion


def tried_options(config: ScrapeConfig) -> list[str]:
    """Return the flags of the options whose changes are tried."""
    names = dict.fromkeys(name for change in _changes(config) for name in change)
    return [_flag(name) for name in names]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _changes(config: ScrapeConfig) -> Iterator[dict[str, Any]]:
    """Yield single changes, the smallest first."""
    if config.source != "urls":
        yield {"min_score": 0}
        yield from ({"karma": karma} for karma in KARMA)
    yield from ({name: None} for name in ("after", "before") if getattr(config, name) is not None)
    if config.subreddit:
        yield {"subreddit": ()}
    yield from ({"profile": profile} for profile in PROFILES if profile != config.profile)


def _try_change(submissions: Sequence[ScoredSubmission], config: ScrapeConfig, fields: Mapping[str, Any]) -> str | None:
    """Return a change as flags if it keeps the URL; the score is the highest one that does."""
    try:
        score = outcome_of(submissions, make_filter(dataclasses.replace(config, **fields))).score
    except UsageError:
        return None
    if score is None:
        return None
    words = []
    for name, value in fields.items():
        flag = _flag(name)
        if name == "min_score":
            words.append(f"{flag} {score}")
        else:
            words.append(f"{flag} {value}" if value else f"no {flag}")
    return " and ".join(words)
