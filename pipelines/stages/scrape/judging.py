"""Judges the submissions of a file: the posts of thousands of lines at once, then the URL of each that is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipelines.core.compression import open_decompressed
from pipelines.core.errors import DamagedFileError
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.months import month_numbers, months_of
from pipelines.stages.scrape.plain_rows import PlainRowJudge, PlainRows, plain_urls, simplified_urls
from pipelines.stages.scrape.reading import Rejects
from pipelines.stages.scrape.scanning import Lines, scanned_lines
from pipelines.stages.scrape.selection import Selection, Verdict
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission

Rows = npt.NDArray[np.bool_]


@dataclasses.dataclass
class Judged:
    """Submissions that make a link: those whose URL is plain as columns, the others one by one."""

    plain: list[PlainRows]
    others: list[tuple[RawSubmission, Verdict]]

    def __len__(self) -> int:
        """Return the number of submissions."""
        return sum(len(part.rows) for part in self.plain) + len(self.others)


def judged_dump(
    file: SourceFile,
    selection: Selection,
    buckets: int,
    unscored_months: tuple[str, ...],
    rejects: Rejects,
    stats: FileStats,
) -> Iterator[tuple[Judged, Judged]]:
    """Yield the submissions of a dump that make a link, some hundred at a time: those that are kept, and the pending.

    Pending are those of `unscored_months` (YYYY-MM), which are not judged by their score. Everything is counted in
    `stats`. A damaged file ends early, which stands in `stats`; compressed bytes are reported as progress.
    """
    months = month_numbers(unscored_months)
    judge = PlainRowJudge(selection.profile.tables, buckets)
    for lines in counted_lines(file, rejects, stats):
        kept, pending = _judged(lines, selection, judge, months, stats)
        stats.kept += len(kept)
        stats.pending += len(pending)
        yield kept, pending


def counted_lines(file: SourceFile, rejects: Rejects, stats: FileStats) -> Iterator[Lines]:
    """Yield the lines of a dump and count them, before anything is judged; a damaged one ends early."""
    try:
        with open_decompressed(file.path, report_bytes=True) as stream:
            for lines in scanned_lines(stream, rejects):
                _count_lines(lines, stats)
                yield lines
    except DamagedFileError as error:
        stats.damaged_at, stats.damage = error.offset_bytes, error.reason
    stats.bad_lines = rejects.count
    stats.too_many_bad = rejects.too_many(stats.lines)
    if stats.damaged_at is None:
        stats.look_over()


def _judged(
    lines: Lines,
    selection: Selection,
    judge: PlainRowJudge,
    unscored_months: npt.NDArray[np.int64],
    stats: FileStats,
) -> tuple[Judged, Judged]:
    unscored = np.isin(months_of(lines.created_utc), unscored_months)
    rows = np.flatnonzero(_good_posts(lines, selection, unscored, stats))
    plain = plain_urls(lines, rows)
    rows = np.setdiff1d(rows, plain.rows, assume_unique=True)
    found = [judge.judge(lines, plain, stats.dropped).split(unscored)]
    if not judge.needs_submitted:
        simplified = simplified_urls(lines, rows)
        rows = np.setdiff1d(rows, simplified.rows, assume_unique=True)
        found.append(judge.judge(lines, simplified, stats.dropped).split(unscored))
    others: tuple[list[tuple[RawSubmission, Verdict]], list[tuple[RawSubmission, Verdict]]] = ([], [])
    for row in rows.tolist():
        submission = lines.submission(row)
        verdict = selection.judge_url(submission)
        if verdict.reason is not None:
            stats.dropped[verdict.reason] += 1
        else:
            others[int(unscored[row])].append((submission, verdict))
    return Judged([kept for kept, _ in found], others[0]), Judged([pending for _, pending in found], others[1])


def _count_lines(lines: Lines, stats: FileStats) -> None:
    good = lines.good
    stats.lines += len(good) - lines.blank_lines
    stats.with_url += int((good & lines.has_url).sum())
    stats.with_score += int((good & lines.has_score).sum())
    is_link = ~(lines.is_self | lines.promoted)
    stats.days.add(lines.created_utc[good], lines.score[good], lines.has_score[good], is_link[good])


def _good_posts(lines: Lines, selection: Selection, unscored: Rows, stats: FileStats) -> Rows:
    """Return which lines are good posts; the same reasons in the same order as `Selection.reason_against_post`."""
    left = lines.good.copy()

    def drop(reason: str, found: Rows) -> None:
        found = found & left
        count = int(np.count_nonzero(found))
        if count:
            stats.dropped[reason] += count
            left[found] = False

    if selection.subreddits:
        drop("other_subreddit", _of_other_subreddits(lines, left, selection.subreddits))
    if selection.after is not None:
        drop("too_early", lines.created_utc < selection.after)
    if selection.before is not None:
        drop("too_late", lines.created_utc >= selection.before)
    drop("promoted", lines.promoted)
    drop("self_post", lines.is_self)
    if selection.needs_score:
        drop("missing_score", ~(lines.has_score | unscored))
    if selection.least_score is not None:
        drop("low_score", lines.has_score & (lines.score < selection.least_score) & ~unscored)
    return left


def _of_other_subreddits(lines: Lines, good: Rows, wanted: frozenset[str]) -> Rows:
    found = np.zeros(len(good), np.bool_)
    for row in np.flatnonzero(good).tolist():
        found[row] = lines.subreddit(row).lower() not in wanted
    return found
