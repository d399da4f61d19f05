"""Overlap of benchmarks with a corpus, counted over arrays of n-gram ids. Paper, section 4."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Examples by the share of their n-grams that the corpus contains: none, then steps of 5%.
HISTOGRAM_STEPS = 20

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class ExampleCounts(NamedTuple):
    """Per example, the positions at which an n-gram begins, and those whose n-gram is in the corpus; both int64.

    `distinct` and `distinct_found` count the distinct n-grams of all examples together.
    """

    ngrams: Numbers
    overlaps: Numbers
    distinct: int
    distinct_found: int

    @property
    def tested(self) -> Flags:
        """Which examples have at least one n-gram."""
        return self.ngrams > 0

    @property
    def overlapping(self) -> Flags:
        """Which examples have an n-gram that is in the corpus."""
        return self.overlaps > 0

    @property
    def percent(self) -> npt.NDArray[np.float64]:
        """The share of each tested example's n-grams that is in the corpus, in percent."""
        return 100.0 * self.overlaps[self.tested] / self.ngrams[self.tested]

    @property
    def too_short(self) -> int:
        """The number of examples without an n-gram."""
        return int((~self.tested).sum())

    def examples_with(self, percent: int) -> int:
        """Return the number of overlapping examples with at least this share of their n-grams in the corpus."""
        return int((self.overlapping & (self.overlaps * 100 >= self.ngrams * percent)).sum())

    def histogram(self) -> list[int]:
        """Return the number of tested examples by overlap: none, then in steps of equal width up to 100%."""
        tested = self.tested
        steps = -(-self.overlaps[tested] * HISTOGRAM_STEPS // self.ngrams[tested])
        return np.bincount(steps, minlength=1 + HISTOGRAM_STEPS).tolist()  # type: ignore[no-any-return]


class Runs(NamedTuple):
    """Runs of adjacent positions with n-grams in the corpus: the example, its first position, the positions."""

    examples: Numbers
    positions: Numbers
    lengths: Numbers


def match_positions(ids: npt.NDArray[Any], is_found: Flags) -> Numbers:
    """Return the positions at which an n-gram of the corpus begins; `ids` is -1 where no n-gram begins."""
    positions = np.flatnonzero(ids >= 0)
    return np.compress(is_found[ids[positions]], positions)


def count_examples(ids: npt.NDArray[Any], words: Numbers, is_found: Flags) -> ExampleCounts:
    """Count the n-grams of examples and those in the corpus.

    `ids` has the n-gram that begins at each word, -1 if none does; example i begins at word `words[i]`.
    """
    distinct = np.unique(ids[ids >= 0])
    ngrams = np.diff(np.searchsorted(np.flatnonzero(ids >= 0), words))
    overlaps = np.diff(np.searchsorted(match_positions(ids, is_found), words))
    return ExampleCounts(ngrams, overlaps, len(distinct), int(is_found[distinct].sum()))


def percent(part: int, whole: int) -> float:
    """Return a share in percent; 0 if the whole is 0."""
    return round(100.0 * part / whole, 6) if whole else 0.0


def distribution(counts: ExampleCounts) -> dict[str, Any]:
    """Return the distribution of texts by their overlap, as in the paper's appendix, figure 5.

    `cumulative[p]` is the share of texts with at most p percent of their n-grams in the corpus.
    """
    shares = np.sort(counts.percent)
    tested = len(shares)
    within = np.searchsorted(shares, np.arange(101), side="right")
    return {
        "examples": len(counts.ngrams),
        "too_short": counts.too_short,
        "none_percent": percent(int((shares == 0).sum()), tested),
        "under_1_percent": percent(int((shares < 1).sum()), tested),
        "median_percent": round(float(np.median(shares)), 6) if tested else None,
        "mean_percent": round(float(shares.mean()), 6) if tested else None,
        "cumulative": (within / max(1, tested)).round(6).tolist(),
    }


def longest_runs(ids: npt.NDArray[Any], words: Numbers, is_found: Flags, limit: int) -> Runs:
    """Return the longest distinct runs, the longest first, then by example; runs with equal n-grams count once."""
    positions = match_positions(ids, is_found)
    examples = np.searchsorted(words, positions, side="right") - 1
    continues = (np.diff(positions) == 1) & (np.diff(examples) == 0)
    firsts = np.concatenate([positions[:1], positions[1:][~continues]])
    lasts = np.concatenate([positions[:-1][~continues], positions[-1:]])
    lengths = lasts - firsts + 1
    run_of_content: dict[bytes, int] = {}
    for run in np.argsort(-lengths, kind="stable").tolist():
        run_of_content.setdefault(np.ascontiguousarray(ids[firsts[run] : lasts[run] + 1]).tobytes(), run)
        if len(run_of_content) == limit:
            break
    runs = np.array([*run_of_content.values()], np.int64)
    examples = np.searchsorted(words, firsts[runs], side="right") - 1
    return Runs(examples, firsts[runs] - words[examples], lengths[runs])
