"""The linter of months: what the dumps hold of each month, whether it is whole, and whether its scores can be used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.months import SCORE_LABELS, DayCounts, MonthCounts, known_months, month_span
from pipelines.stages.scrape.selection import Selection

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

# A month with fewer submissions may well have no one on its last day.
_ENOUGH_A_DAY = 20


@dataclasses.dataclass(frozen=True)
class MonthReport:
    """One month over all files: its counts, why it may not be whole, and why its scores cannot be used."""

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


def month_reports(files: Sequence[tuple[str, FileStats]], source: str) -> list[MonthReport]:
    """Judge the months of files, given by label, in order of time.

    The months known to be wrong are so in the public dumps; an API is asked for scores of today.
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


def unusable_months(reports: Sequence[MonthReport], selection: Selection) -> list[MonthReport]:
    """Return the months whose scores cannot be used, without those that an option or the profile leaves out by date."""
    return [report for report in reports if report.problem and _is_asked_for(report.month, selection)]


def _is_asked_for(month: str, selection: Selection) -> bool:
    first, end = month_span(month)
    is_early = selection.after is not None and end <= selection.after
    ends = [selection.before, *(rule.created_from for rule in selection.profile.rules)]
    return not is_early and all(each is None or first < each for each in ends)


def _early_end(counts: MonthCounts) -> str | None:
    """Say of a busy month that it has days without a submission at its end."""
    missing = counts.days_in_month - counts.last_day
    if missing and counts.submissions >= _ENOUGH_A_DAY * counts.days_in_month:
        return f"nothing after day {counts.last_day} of {counts.days_in_month}"
    return None
