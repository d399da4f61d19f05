"""What becomes of the submissions of one URL, by the rules of reading and merging, and which option would change it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.core.errors import UsageError
from pipelines.stages.scrape.config import KARMA, PROFILES, ScrapeConfig
from pipelines.stages.scrape.merge import distinct_by_url, link_scores
from pipelines.stages.scrape.selection import Selection, Verdict, make_selection
from pipelines.stages.scrape.submission import RawSubmission
from pipelines.stages.scrape.submission_rows import submission_batch

KEPT, MERGED, DUPLICATE, LOW_SCORE = "kept", "merged_into_link", "duplicate_submission", "low_score"
# Of a submission that waits for its score: it is still to be fetched, is fetched, or was not found by the service.
PENDING, FETCHED, NOT_FOUND = "score_to_fetch", "score_fetched", "score_not_found"

LAXEST_PROFILE = "none"
_MOST_WAYS = 3
# Pairs of changes are many; of a URL that was submitted more often, only single ones are tried.
_MOST_FOR_PAIRS = 10_000


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of each submission, and the link of them: its score, and which submissions it is made of.

    `reasons` are those of the funnel; `kept` is the earliest submission of the link, whose title it has. Where there is
    no link, `score` is None, and `members` are empty.
    """

    reasons: tuple[str, ...]
    score: int | None = None
    members: tuple[int, ...] = ()


def outcome_of(submissions: Sequence[RawSubmission], waiting: Sequence[str | None], selection: Selection) -> Outcome:
    """Judge submissions that have one canonical URL, as the scrape does.

    `waiting` says of each of a month whose scores are fetched anew how far that is: PENDING, FETCHED (the submission
    has the new score) or NOT_FOUND; None of the others.
    """
    reasons, good, verdicts = [], [], []
    for number, (submission, waits) in enumerate(zip(submissions, waiting, strict=True)):
        verdict = selection.judge(submission) if waits is None else _judge_waiting(submission, waits, selection)
        reasons.append(verdict.reason or KEPT)
        if verdict.reason is None:
            good.append(number)
            verdicts.append(verdict)
    return _merged(submissions, reasons, good, verdicts, selection) if good else Outcome(tuple(reasons))


def _judge_waiting(submission: RawSubmission, waits: str, selection: Selection) -> Verdict:
    """Judge all but the score first, since only then a score is fetched."""
    verdict = dataclasses.replace(selection, needs_score=False, least_score=None).judge(submission)
    if verdict.reason is not None:
        return verdict
    if waits != FETCHED:
        return Verdict(waits)
    least = selection.least_score
    return Verdict(LOW_SCORE) if least is not None and (submission.score or 0) < least else verdict


def _merged(
    submissions: Sequence[RawSubmission],
    reasons: list[str],
    good: list[int],
    verdicts: list[Verdict],
    selection: Selection,
) -> Outcome:
    rows = submission_batch([(submissions[number], verdict) for number, verdict in zip(good, verdicts, strict=True)])
    groups = distinct_by_url(rows)
    members = tuple(good[row] for row in groups.rows.tolist())
    score = int(link_scores(rows, groups, selection.karma)[0])
    least = selection.least_link_score
    is_link = least is None or score >= least
    for number in good:
        reasons[number] = DUPLICATE
    for number in members:
        reasons[number] = MERGED if is_link else LOW_SCORE
    if not is_link:
        return Outcome(tuple(reasons))
    reasons[members[0]] = KEPT
    return Outcome(tuple(reasons), score, members)


def ways_to_take(
    submissions: Sequence[RawSubmission], waiting: Sequence[str | None], config: ScrapeConfig
) -> list[str]:
    """Return the changes of options with which a URL's submissions would make a link, none where none do.

    Tried are first single changes, then pairs, then all that lets most pass, without those of them that are not needed.
    `config` is as it was given, before its profile's defaults.
    """
    changes = list(_changes(config))
    for together in (1, 2) if len(submissions) <= _MOST_FOR_PAIRS else (1,):
        ways = []
        for chosen in itertools.combinations(changes, together):
            fields = {name: value for change in chosen for name, value in change.items()}
            if len(fields) == sum(map(len, chosen)) and (way := _way(submissions, waiting, config, fields)):
                ways.append(way)
        if ways:
            return ways[: _MOST_WAYS if together == 1 else 1]
    way = _way_of_many(submissions, waiting, config, changes)
    return [way] if way else []


def _way_of_many(
    submissions: Sequence[RawSubmission],
    waiting: Sequence[str | None],
    config: ScrapeConfig,
    changes: Sequence[Mapping[str, Any]],
) -> str | None:
    # Nothing lets more pass than no rules and no limits, so that where this drops the URL, any change does.
    fields = {name: value for change in changes for name, value in change.items() if name != "karma"}
    fields["profile"] = LAXEST_PROFILE
    way = _way(submissions, waiting, config, fields)
    for name in list(fields) if way else []:
        fewer = {each: value for each, value in fields.items() if each != name}
        if shorter := _way(submissions, waiting, config, fewer):
            way, fields = shorter, fewer
    return way


def tried_options(config: ScrapeConfig) -> list[str]:
    """Return the flags of the options of which changes are tried."""
    names = dict.fromkeys(name for change in _changes(config) for name in change)
    return [_flag(name) for name in names]


def _flag(name: str) -> str:
    return "--subreddit" if name == "subreddits" else "--" + name.replace("_", "-")


def _changes(config: ScrapeConfig) -> Iterator[dict[str, Any]]:
    """Yield single changes, the smallest first."""
    if config.source != "urls":
        yield {"min_score": 0}
        yield from ({"karma": karma} for karma in KARMA)
    yield from ({name: None} for name in ("after", "before") if getattr(config, name) is not None)
    if config.subreddits:
        yield {"subreddits": ()}
    yield from ({"profile": profile} for profile in reversed(PROFILES) if profile != config.profile)


def _way(
    submissions: Sequence[RawSubmission],
    waiting: Sequence[str | None],
    config: ScrapeConfig,
    fields: Mapping[str, Any],
) -> str | None:
    """Return a change in words where it takes the URL; the score is the highest that still does."""
    changed = dataclasses.replace(config, **fields)
    try:
        score = outcome_of(submissions, waiting, make_selection(changed)).score
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
