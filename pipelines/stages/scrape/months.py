"""Counts and scores by day, from which the scores of a month are checked.

Some months of the public archives contain scores that were recorded seconds after posting. A minimum of three points
would silently drop almost all of them, so they are detected before any score is used.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime as dt
import hashlib
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.stages.scrape.submission import Submission
from pipelines.storage.resources import data_path

Counts = npt.NDArray[np.int64]

# The columns of a day: submissions, links, submissions without a score, submissions by score, sum of scores.
SCORE_EDGES = (1, 2, 3, 10, 100, 1000)
SCORE_LABELS = ("0", "1", "2", "3-9", "10-99", "100-999", "1000+")
_SUBMISSIONS, _LINKS, _NO_SCORE, _FIRST_SCORE = range(4)
_SUM = _FIRST_SCORE + len(SCORE_LABELS)
_COLUMNS = _SUM + 1
_FIRST_GOOD_SCORE = _FIRST_SCORE + 3

_KNOWN_MONTHS = "reddit-months.toml"
_DAY_S = 86400
_WAITING_ROWS = 4096
_EPOCH = dt.date(1970, 1, 1).toordinal()
# Scores are clipped: one wrong score must not overflow a sum or hide a month.
_MAX_SCORE = 10**6

# A day or month with this many submissions, of which fewer than this share have three points, was recorded too early.
# In all other months of the archives, several percent have.
_MIN_SCORED = 1000
_MIN_GOOD_SHARE = 0.03
# The same minimum for known months, which are checked by their mean score.
_MIN_SCORED_IF_KNOWN = 20


class DayCounts:
    """Counts submissions by day (UTC) and score."""

    def __init__(self, days: Mapping[int, Counts] | None = None) -> None:
        self._days: dict[int, Counts] = dict(days or {})
        # Arrays of a few hundred rows cost more than their rows, so they wait until there are many.
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
            self._add_day(day, row)
        self._created_utc, self._scores, self._is_link = [], [], []

    def _add_day(self, day: int, counts: Counts) -> None:
        known = self._days.get(day)
        self._days[day] = counts.copy() if known is None else known + counts

    def update(self, other: DayCounts) -> None:
        """Add the counts of another."""
        for day, counts in other.by_day().items():
            self._add_day(day, counts)

    def by_day(self) -> dict[int, Counts]:
        """Return the counts of each day since 1970, in order."""
        self._count_waiting()
        return dict(sorted(self._days.items()))

    def months(self) -> Iterator[MonthCounts]:
        """Yield the months that have submissions, in order."""
        by_month: dict[str, dict[int, Counts]] = {}
        for day, counts in self.by_day().items():
            month = str(np.datetime64(day, "D").astype("datetime64[M]"))
            by_month.setdefault(month, {})[day] = counts
        for month, days in by_month.items():
            yield MonthCounts(month, days)

    def to_json(self) -> dict[str, list[int]]:
        """Return the counts as JSON values."""
        return {str(day): counts.tolist() for day, counts in self.by_day().items()}

    @classmethod
    def from_json(cls, value: Mapping[str, list[int]]) -> DayCounts:
        """Read counts from JSON values."""
        return cls({int(day): np.array(counts, np.int64) for day, counts in value.items()})


@dataclasses.dataclass(frozen=True)
class MonthCounts:
    """The counts of one month, `YYYY-MM`, by day since 1970."""

    month: str
    days: Mapping[int, Counts]

    @property
    def total(self) -> Counts:
        """The counts of all days together."""
        total: Counts = np.array(list(self.days.values()), np.int64).sum(axis=0)
        return total

    @property
    def submissions(self) -> int:
        """The number of submissions."""
        return int(self.total[_SUBMISSIONS])

    @property
    def links(self) -> int:
        """The number of submissions with a link."""
        return int(self.total[_LINKS])

    @property
    def without_score(self) -> int:
        """The number of submissions whose score is null."""
        return int(self.total[_NO_SCORE])

    @property
    def histogram(self) -> list[int]:
        """The number of submissions by score, for each of SCORE_LABELS."""
        return [int(count) for count in self.total[_FIRST_SCORE:_SUM]]

    @property
    def mean_score(self) -> float:
        """The mean of the scores, each clipped to a million; 0 without scores."""
        return _mean(self.total)

    @property
    def first_day(self) -> int:
        """The first day of the month with a submission."""
        return _date(min(self.days)).day

    @property
    def last_day(self) -> int:
        """The last day of the month with a submission."""
        return _date(max(self.days)).day

    @property
    def days_in_month(self) -> int:
        """The number of days that the month has."""
        first = _date(min(self.days))
        return calendar.monthrange(first.year, first.month)[1]

    @property
    def empty_days(self) -> int:
        """The number of days of the month without a submission."""
        return self.days_in_month - len(self.days)

    @property
    def fresh_days(self) -> list[int]:
        """The days, from 1, whose scores look recorded at ingestion."""
        return [_date(day).day for day, counts in self.days.items() if _is_fresh(counts)]

    def problem(self, known: Mapping[str, KnownMonth]) -> str | None:
        """Return why the scores look recorded at ingestion, or None if they do not.

        `known` are the known months; they need less evidence, but some.
        """
        total, fresh_days = self.total, self.fresh_days
        scored = int(total[_FIRST_SCORE:_SUM].sum())
        known_month = known.get(self.month)
        good = (
            f"{_good_share(total):.1%} of {scored:,} submissions have 3 points or more, mean score {_mean(total):.1f}"
        )
        if known_month and scored >= _MIN_SCORED_IF_KNOWN and _mean(total) < known_month.min_mean_score:
            return f"{good}; {known_month.what}"
        if _is_fresh(total) or (len(fresh_days) == len(self.days) and fresh_days):
            return f"{good}; in other months several in a hundred do"
        if fresh_days:
            return (
                f"on {len(fresh_days)} of its days (first: {fresh_days[0]}) almost no submission has 3 points; {good}"
            )
        return None


@dataclasses.dataclass(frozen=True)
class KnownMonth:
    """A month of the public archives whose scores are known to be recorded at ingestion, with the evidence."""

    min_mean_score: float
    what: str


def known_months() -> dict[str, KnownMonth]:
    """Return the months in `data/reddit-months.toml`."""
    tables = tomllib.loads(storage.read_bytes(data_path(_KNOWN_MONTHS)).decode())
    return {month: KnownMonth(float(table["least_mean_score"]), table["what"]) for month, table in tables.items()}


def known_months_version() -> str:
    """Return the hash of the list of known months, which decides which months are refused or re-fetched."""
    return hashlib.sha256(storage.read_bytes(data_path(_KNOWN_MONTHS))).hexdigest()


def month_span(month: str) -> tuple[int, int]:
    """Return the first second of a month `YYYY-MM` and of the next month, since 1970, UTC."""
    start = np.datetime64(month, "M")
    first, end = (int(bound.astype("datetime64[s]").astype(np.int64)) for bound in (start, start + 1))
    return first, end


def _date(day: int) -> dt.date:
    return dt.date.fromordinal(day + _EPOCH)


def _mean(counts: Counts) -> float:
    scored = int(counts[_FIRST_SCORE:_SUM].sum())
    return float(counts[_SUM]) / scored if scored else 0.0


def _good_share(counts: Counts) -> float:
    scored = int(counts[_FIRST_SCORE:_SUM].sum())
    return float(counts[_FIRST_GOOD_SCORE:_SUM].sum()) / scored if scored else 0.0


def has_fresh_scores(scored: int, good: int) -> bool:
    """Return whether scores look recorded at ingestion, from their number and the number of scores of 3 or more."""
    return scored >= _MIN_SCORED and good < scored * _MIN_GOOD_SHARE


def _is_fresh(counts: Counts) -> bool:
    return has_fresh_scores(int(counts[_FIRST_SCORE:_SUM].sum()), int(counts[_FIRST_GOOD_SCORE:_SUM].sum()))
