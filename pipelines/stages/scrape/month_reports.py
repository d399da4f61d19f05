"""Reports on months: what the dumps contain of each, whether it is complete, and whether its scores can be used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.months import SCORE_LABELS, DayCounts, MonthCounts, known_months, month_span
from pipelines.stages.scrape.submission_filter import SubmissionFilter

MONTH_SCHEMA = pa.schema(
    [
        pa.field("month", pa.string(), nullable=False),
        pa.field("files", pa.list_(pa.string()), nullable=False),
        pa.field("submissions", pa.int64(), nullable=False),
        pa.field("links", pa.int64(), nullable=False),
        pa.field("without_score", pa.int64(), nullable=False),
        pa.field("mean_score", pa.float64(), nullable=False),
        *(pa.field(f"score_{label}", pa.int64(), nullable=False) for label in SCORE_LABELS),
        pa.field("first_day", pa.int64(), nullable=False),
        pa.field("last_day", pa.int64(), nullable=False),
        pa.field("empty_days", pa.int64(), nullable=False),
        pa.field("truncated", pa.string()),
        pa.field("problem", pa.string()),
    ]
)

# A month with fewer submissions may well have none on its last day.
_MIN_PER_DAY = 20


@dataclasses.dataclass(frozen=True)
class MonthReport:
    """One month over all files: its counts, why it may be incomplete, and why its scores cannot be used."""

    counts: MonthCounts
    files: tuple[str, ...]
    truncated: str | None
    problem: str | None

    @property
    def month(self) -> str:
        """The month as YYYY-MM."""
        return self.counts.month

    def row(self) -> dict[str, object]:
        """Return the row of MONTH_SCHEMA."""
        counts = self.counts
        scores = dict(zip((f"score_{label}" for label in SCORE_LABELS), counts.histogram, strict=True))
        return {
            "month": counts.month,
            "files": list(self.files),
            "submissions": counts.submissions,
            "links": counts.links,
            "without_score": counts.without_score,
            "mean_score": round(counts.mean_score, 6),
            **scores,
            "first_day": counts.first_day,
            "last_day": counts.last_day,
            "empty_days": counts.empty_days,
            "truncated": self.truncated,
            "problem": self.problem,
        }


def make_month_reports(files: Sequence[tuple[str, FileStats]], source: str) -> list[MonthReport]:
    """Return the reports on the months of files, given by label, in order of time.

    The list of known months is about the public dumps; an API returns current scores.
    """
    known = known_months() if source == "dump" else {}
    days = DayCounts()
    labels: dict[str, list[str]] = {}
    damaged: dict[str, str] = {}
    for label, stats in files:
        days.update(stats.days)
        months = [counts.month for counts in stats.days.months()]
        for month in months:
            labels.setdefault(month, []).append(label)
        if stats.damaged_at is not None and months:
            damaged.setdefault(months[-1], f"{label} is damaged near compressed byte {stats.damaged_at}")
    return [
        MonthReport(
            counts, tuple(labels[counts.month]), damaged.get(counts.month) or _early_end(counts), counts.problem(known)
        )
        for counts in days.months()
    ]


def unusable_months(reports: Sequence[MonthReport], filter: SubmissionFilter) -> list[MonthReport]:
    """Return the months whose scores cannot be used, without those that an option or the profile excludes by date."""
    return [report for report in reports if report.problem and _is_requested(report.month, filter)]


def _is_requested(month: str, filter: SubmissionFilter) -> bool:
    start, end = month_span(month)
    if filter.after is not None and end <= filter.after:
        return False
    limits = [filter.before, *(rule.created_from for rule in filter.profile.rules)]
    return all(limit is None or start < limit for limit in limits)


def _early_end(counts: MonthCounts) -> str | None:
    """Return a message if a busy month has no submissions on its last days."""
    missing = counts.days_in_month - counts.last_day
    if missing and counts.submissions >= _MIN_PER_DAY * counts.days_in_month:
        return f"nothing after day {counts.last_day} of {counts.days_in_month}"
    return None
