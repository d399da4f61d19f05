"""What is counted per file and per month, and the lists of both next to the links.

Some months of the public archives contain scores that were recorded seconds after posting. A minimum of three points
would silently drop almost all of them, so they are detected before any score is used.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.config import Tables, read_toml
from pipelines.engine.manifest import FileEntry
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.schemas import make_schema
from pipelines.stages.scrape.decision import SubmissionFilter, midnight_utc
from pipelines.stages.scrape.submission import Submission
from pipelines.storage.resources import data_path

Counts = npt.NDArray[np.int64]

# The columns of a day: submissions, links, submissions without a score, submissions by score, sum of scores.
GOOD_SCORE = 3
SCORE_EDGES = (1, 2, GOOD_SCORE, 10, 100, 1000)
SCORE_LABELS = ("0", "1", "2", "3-9", "10-99", "100-999", "1000+")
_SUBMISSIONS, _LINKS, _NO_SCORE, _FIRST_SCORE = range(4)
_SUM = _FIRST_SCORE + len(SCORE_LABELS)
_COLUMNS = _SUM + 1
_FIRST_GOOD_SCORE = _FIRST_SCORE + SCORE_LABELS.index("3-9")

# The months whose scores are known to be recorded at ingestion, with the evidence.
KNOWN_MONTHS = data_path("reddit-months.toml")
_DAY_S = 86400
_WAITING_ROWS = 4096
# Scores are clipped: one wrong score must not overflow a sum or hide a month.
_MAX_SCORE = 10**6

# A day or month with this many submissions, of which fewer than this share have three points, was recorded too early.
# In all other months of the archives, several percent have.
_MIN_SCORED = 1000
_MIN_GOOD_SHARE = 0.03
# The same minimum for known months, which are checked by their mean score.
_MIN_SCORED_IF_KNOWN = 20
# A month with fewer submissions may well have none on its last day.
_MIN_PER_DAY = 20
# A file is refused with more bad lines than both of these: a few occur, many mean that it is not what it seems.
_BAD_LINES_ALLOWED = 9
_BAD_SHARE_ALLOWED = 0.01

FILE_SCHEMA = make_schema(
    file="string", lines="int64", bad_lines="int64", kept_submissions="int64",
    dropped=pa.map_(pa.string(), pa.int64()), damaged_at="int64?", damage="string?",
)  # fmt: skip
MONTH_SCHEMA = make_schema(
    month="string", files="strings", submissions="int64", links="int64", without_score="int64", mean_score="float64",
    **{f"score_{label}": "int64" for label in SCORE_LABELS}, first_day="int64", last_day="int64", empty_days="int64",
    truncated="string?", problem="string?",
)  # fmt: skip


class DayCounts:
    """Counts submissions by day (UTC) and score."""

    def __init__(self, days: Mapping[int, Counts] | None = None) -> None:
        self._days: dict[int, Counts] = dict(days or {})
        # Small arrays cost more than their rows, so rows wait until there are thousands.
        self._created_utc: list[int] = []
        self._scores: list[float] = []
        self._is_link: list[bool] = []

    def add(self, submissions: Sequence[Submission]) -> None:
        """Count submissions."""
        self._created_utc += [submission.created_utc for submission in submissions]
        self._scores += [math.nan if (score := submission.score) is None else score for submission in submissions]
        self._is_link += [not (post.is_self or post.promoted is True) for post in submissions]
        if len(self._scores) >= _WAITING_ROWS:
            self._count_waiting()

    def _count_waiting(self) -> None:
        # `np.array` takes up to twice as long, since it first looks for a type that all values have.
        days_of = np.fromiter(self._created_utc, np.int64) // _DAY_S
        scores = np.fromiter(self._scores, np.float64)
        days = np.unique(days_of[np.diff(days_of, prepend=-1) != 0])
        rows = np.searchsorted(days, days_of)
        column = np.where(np.isnan(scores), _NO_SCORE, _FIRST_SCORE + np.searchsorted(SCORE_EDGES, scores, "right"))
        counts = np.bincount(rows * _COLUMNS + column, minlength=len(days) * _COLUMNS).reshape(-1, _COLUMNS)
        counts[:, _LINKS] = np.bincount(rows, np.fromiter(self._is_link, np.bool_), len(days))
        counts[:, _SUM] = np.bincount(rows, np.nan_to_num(np.clip(scores, -_MAX_SCORE, _MAX_SCORE)), len(days))
        counts[:, _SUBMISSIONS] = counts[:, _NO_SCORE:_SUM].sum(axis=1)
        for day, row in zip(days.tolist(), counts, strict=True):
            self._days[day] = row + self._days.get(day, 0)
        self._created_utc, self._scores, self._is_link = [], [], []

    def update(self, other: DayCounts) -> None:
        """Add the counts of another."""
        for day, counts in other.by_day().items():
            self._days[day] = counts + self._days.get(day, 0)

    def by_day(self) -> dict[int, Counts]:
        """Return the counts of each day since 1970, in order."""
        self._count_waiting()
        return dict(sorted(self._days.items()))

    def by_month(self) -> dict[str, dict[int, Counts]]:
        """Return the counts of each month `YYYY-MM` by day since 1970, in order."""
        months: dict[str, dict[int, Counts]] = {}
        for day, counts in self.by_day().items():
            months.setdefault(month_of(day * _DAY_S), {})[day] = counts
        return months


@dataclasses.dataclass
class FileStats:
    """The counts of one source file, stored as a work file alongside its submissions.

    `damage` describes what is wrong with it, if anything; `damaged_at` is the offset in its compressed bytes where
    decoding stopped. `sha256` is of the whole file, if it is damaged. Of the scores `fetched` from a service,
    `fetched_good` are 3 or more.
    """

    lines: int = 0
    has_url: bool = False
    has_score: bool = False
    kept: int = 0
    bad_lines: int = 0
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    damaged_at: int | None = None
    damage: str = ""
    sha256: str = ""
    fetched: int = 0
    fetched_good: int = 0
    days: DayCounts = dataclasses.field(default_factory=DayCounts)

    def count(self, submissions: Sequence[Submission]) -> None:
        """Count submissions before any filter is applied."""
        self.lines += len(submissions)
        self.has_url = self.has_url or any(submission.url is not None for submission in submissions)
        self.has_score = self.has_score or any(submission.score is not None for submission in submissions)
        self.days.add([submission for submission in submissions if submission.created_utc])  # a table may have no times

    def implausibility(self, source: str, hint: str) -> str:
        """Return what is wrong with a file that could be read, with a `hint` if no line is good; empty if nothing."""
        bad = f"{self.bad_lines:,} of its {self.lines:,} lines"
        too_many = self.bad_lines > _BAD_LINES_ALLOWED and self.bad_lines > self.lines * _BAD_SHARE_ALLOWED
        if source == "urls":
            return f"{bad} cannot be read (more than 1%), so it is probably not a list of URLs" if too_many else ""
        if not self.lines:
            return "contains no lines; the download may be incomplete"
        if too_many or self.bad_lines == self.lines:
            return f"{bad} are not submissions ({(self.bad_lines == self.lines and hint) or 'more than 1%'})"
        missing = "url" if not self.has_url else "score" if not self.has_score else None
        lines = plural(self.lines, "line")
        return f"no line has a usable `{missing}` (of {lines}), so it is not a dump" if missing else ""

    def problem(self, path: str) -> str | None:
        """Return what is wrong with the file, None if it is intact."""
        if self.damaged_at is not None:
            return (
                f"{path}: is truncated or corrupt near compressed byte {self.damaged_at} ({self.damage}); "
                f"{self.lines:,} lines before it were read"
            )
        return f"{path}: {self.damage}" if self.damage else None

    def row(self, label: str) -> dict[str, Any]:
        """Return the row of the list of files."""
        return {
            "file": label,
            "lines": self.lines,
            "bad_lines": self.bad_lines,
            "kept_submissions": self.kept,
            "dropped": sorted(self.dropped.items()),
            "damaged_at": self.damaged_at,
            "damage": self.damage or None,
        }

    def to_json(self) -> bytes:
        """Return the stats as JSON."""
        days = {str(day): counts.tolist() for day, counts in self.days.by_day().items()}
        return json.dumps({**vars(self), "dropped": dict(sorted(self.dropped.items())), "days": days}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> FileStats:
        """Read stats from JSON."""
        fields = json.loads(data)
        days = DayCounts({int(day): np.array(counts, np.int64) for day, counts in fields["days"].items()})
        return cls(**{**fields, "dropped": Counter(fields["dropped"]), "days": days})


def make_month_reports(files: Sequence[tuple[str, FileStats]], source: str) -> list[dict[str, Any]]:
    """Return the months of files, given by label, as rows of MONTH_SCHEMA in order of time.

    `truncated` says why a month may be incomplete, `problem` why its scores cannot be used. The list of known months is
    about the public dumps; an API returns current scores.
    """
    known = read_toml(KNOWN_MONTHS, Tables) if source == "dump" else {}
    all_days = DayCounts()
    labels: dict[str, list[str]] = {}
    damaged: dict[str, str] = {}
    for label, stats in files:
        all_days.update(stats.days)
        months = list(stats.days.by_month())
        for month in months:
            labels.setdefault(month, []).append(label)
        if stats.damaged_at is not None and months:
            damaged.setdefault(months[-1], f"{label} is damaged near compressed byte {stats.damaged_at}")
    reports = []
    for month, days in all_days.by_month().items():
        total = _total(days)
        histogram = zip(SCORE_LABELS, total[_FIRST_SCORE:_SUM].tolist(), strict=True)
        reports.append(
            {
                "month": month,
                "files": labels[month],
                "submissions": int(total[_SUBMISSIONS]),
                "links": int(total[_LINKS]),
                "without_score": int(total[_NO_SCORE]),
                "mean_score": round(_mean(total), 6),
                **{f"score_{label}": count for label, count in histogram},
                "first_day": _day_of_month(min(days)),
                "last_day": _day_of_month(max(days)),
                "empty_days": days_in_month(month) - len(days),
                "truncated": damaged.get(month) or _early_end(month, days),
                "problem": _score_problem(days, known.get(month)),
            }
        )
    return reports


def _early_end(month: str, days: Mapping[int, Counts]) -> str | None:
    """Return a message if a busy month has no submissions on its last days."""
    last, length = _day_of_month(max(days)), days_in_month(month)
    is_truncated = last < length and _total(days)[_SUBMISSIONS] >= _MIN_PER_DAY * length
    return f"nothing after day {last} of {length}" if is_truncated else None


def _score_problem(days: Mapping[int, Counts], known: Mapping[str, Any] | None) -> str | None:
    """Return why the scores of a month look recorded at ingestion, or None if they do not.

    `known` is the month's evidence if it is a known one; such months need less evidence, but some.
    """
    total = _total(days)
    scored, good = _scored(total)
    fresh_days = [_day_of_month(day) for day, counts in days.items() if has_fresh_scores(*_scored(counts))]
    share = good / scored if scored else 0.0
    evidence = f"{share:.1%} of {scored:,} submissions have 3 points or more, mean score {_mean(total):.1f}"
    if known and scored >= _MIN_SCORED_IF_KNOWN and _mean(total) < known["least_mean_score"]:
        return f"{evidence}; {known['what']}"
    if has_fresh_scores(scored, good) or (fresh_days and len(fresh_days) == len(days)):
        return f"{evidence}; in other months several in a hundred do"
    if not fresh_days:
        return None
    return f"on {len(fresh_days)} of its days (first: {fresh_days[0]}) almost no submission has 3 points; {evidence}"


def unusable_months(reports: Sequence[dict[str, Any]], filter: SubmissionFilter) -> dict[str, str]:
    """Return the months whose scores cannot be used, with the reason; without those that a date excludes."""

    def is_requested(month: str) -> bool:
        start, end = month_span(month)
        limits = [midnight_utc(rule.created_from) for rule in filter.profile.rule if rule.created_from]
        limits += [] if filter.before is None else [filter.before]
        return all(start < limit for limit in limits) and (filter.after is None or end > filter.after)

    problems = {report["month"]: report["problem"] for report in reports}
    return {month: problem for month, problem in problems.items() if problem and is_requested(month)}


def name_late_months(months: Sequence[str], filter: SubmissionFilter) -> list[str]:
    """Return a message if a rule of the profile drops every submission of some months, because they are too late."""
    return [
        f"--profile {filter.profile.name} drops all submissions from {rule.created_from:%Y-%m} on ({rule.name}); "
        "choose another --profile, such as none, to keep them"
        for rule in filter.profile.rule
        if rule.created_from and max(months, default="") >= f"{rule.created_from:%Y-%m}"
    ]


def has_fresh_scores(scored: int, good: int) -> bool:
    """Return whether scores look recorded at ingestion, from their number and the number of scores of 3 or more."""
    return scored >= _MIN_SCORED and good < scored * _MIN_GOOD_SHARE


def month_of(created_utc: int) -> str:
    """Return the month `YYYY-MM` of a time in seconds since 1970, UTC."""
    return dt.datetime.fromtimestamp(created_utc, dt.UTC).strftime("%Y-%m")


def month_span(month: str) -> tuple[int, int]:
    """Return the first second of a month `YYYY-MM` and of the next month, since 1970, UTC."""
    start = int(dt.datetime.fromisoformat(f"{month}-01T00:00:00Z").timestamp())
    return start, start + days_in_month(month) * _DAY_S


def days_in_month(month: str) -> int:
    """Return the number of days of a month `YYYY-MM`."""
    return calendar.monthrange(*map(int, month.split("-")))[1]


def _day_of_month(day: int) -> int:
    """Return the day of the month, from 1, of a day since 1970."""
    return dt.datetime.fromtimestamp(day * _DAY_S, dt.UTC).day


def _total(days: Mapping[int, Counts]) -> Counts:
    total: Counts = np.array(list(days.values()), np.int64).sum(axis=0)
    return total


def _scored(counts: Counts) -> tuple[int, int]:
    """Return the number of scores, and of those that are 3 or more."""
    return int(counts[_FIRST_SCORE:_SUM].sum()), int(counts[_FIRST_GOOD_SCORE:_SUM].sum())


def _mean(counts: Counts) -> float:
    scored, _ = _scored(counts)
    return float(counts[_SUM]) / scored if scored else 0.0


def write_list(output: str, noun: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> FileEntry:
    """Write a list next to the links, such as `months-00000.parquet`."""
    with shards.write_shard(output, shards.shard_name(noun, 0), schema) as written:
        for batch in batches:
            if batch.num_rows:
                written.write_batch(batch)
    return written.entry
