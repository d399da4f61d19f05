"""How much of each benchmark a corpus holds, counted over arrays of n-gram numbers. Paper, section 4."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import kernel

# Examples by the share of their n-grams that is found: none at all, then steps of 5%.
HISTOGRAM_STEPS = 20
SOURCES = 3

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class ExampleCounts(NamedTuple):
    """Per example, the positions at which an n-gram begins, and those whose n-gram is found; both int64.

    `distinct` and `distinct_found` count the distinct n-grams of all examples together.
    """

    ngrams: Numbers
    found: Numbers
    distinct: int
    distinct_found: int

    @property
    def tested(self) -> Flags:
        """Which examples have an n-gram at all."""
        return self.ngrams > 0

    @property
    def overlapping(self) -> Flags:
        """Which examples have an n-gram that is found."""
        return self.found > 0

    @property
    def percent(self) -> npt.NDArray[np.float64]:
        """The share of each tested example's n-grams that is found, in percent."""
        return 100.0 * self.found[self.tested] / self.ngrams[self.tested]

    @property
    def too_short(self) -> int:
        """The number of examples without an n-gram."""
        return int((~self.tested).sum())

    def examples_with(self, percent: int) -> int:
        """Return the number of overlapping examples of whose n-grams at least this share is found."""
        return int((self.overlapping & (self.found * 100 >= self.ngrams * percent)).sum())

    def histogram(self) -> list[int]:
        """Return the number of tested examples by share found: none, then in steps of equal width up to 100%."""
        tested = self.tested
        steps = -(-self.found[tested] * HISTOGRAM_STEPS // self.ngrams[tested])
        return np.bincount(steps, minlength=1 + HISTOGRAM_STEPS).tolist()  # type: ignore[no-any-return]


class Runs(NamedTuple):
    """Runs of neighbouring positions whose n-grams are all found: the example, its first position, the positions."""

    examples: Numbers
    positions: Numbers
    lengths: Numbers


class CorpusCounts:
    """What a corpus holds of an index's n-grams: how often, in how many documents, and in which, at most three.

    Documents are numbered in the order in which they are added. Memory: 44 bytes for each n-gram of the index.
    """

    def __init__(self, ngrams: int) -> None:
        self.counts = np.zeros(ngrams, np.int64)
        self.documents = np.zeros(ngrams, np.int64)
        self.sources = np.full((ngrams, SOURCES), -1, np.int32)
        self._last = np.full(ngrams, -1, np.int32)

    def add(self, first_document: int, documents: Numbers, ids: Numbers) -> npt.NDArray[np.int64]:
        """Count the n-grams `ids` of documents, given in the order of the documents.

        `documents` are their numbers after `first_document`; those that are now a source of some n-gram are returned.
        """
        new = np.empty(len(ids), np.int64)
        size = _count(first_document, documents, ids, self.counts, self.documents, self.sources, self._last, new)
        return np.unique(new[:size])


@kernel
def _count(first_document, documents, ids, counts, document_counts, sources, last, new):  # type: ignore[no-untyped-def]
    size = 0
    for hit in range(len(ids)):
        id, document = ids[hit], first_document + documents[hit]
        counts[id] += 1
        if last[id] != document:
            last[id] = document
            if document_counts[id] < sources.shape[1]:
                sources[id, document_counts[id]] = document
                new[size] = documents[hit]
                size += 1
            document_counts[id] += 1
    return size


def count_examples(ids: npt.NDArray[Any], words: Numbers, found: Flags) -> ExampleCounts:
    """Count the positions of examples: `ids` of their words (-1: no n-gram begins there), `words[i]` where i begins."""
    distinct = np.unique(ids[ids >= 0])
    begins = ids >= 0
    overlaps = begins & found[np.maximum(ids, 0)] if len(found) else begins
    totals = (np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)]) for flags in (begins, overlaps))
    ngrams, overlapping = (total[words[1:]] - total[words[:-1]] for total in totals)
    return ExampleCounts(ngrams, overlapping, len(distinct), int(found[distinct].sum()))


def percent(part: int, whole: int) -> float:
    """Return a share in percent, 0 of nothing."""
    return round(100.0 * part / whole, 6) if whole else 0.0


def distribution(counts: ExampleCounts) -> dict[str, Any]:
    """Return how texts are spread over shares of overlap, as the paper's appendix, figure 5, has it.

    `cumulative[p]` is the share of texts of whose n-grams at most p percent are found.
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


def longest_runs(ids: npt.NDArray[Any], words: Numbers, found: Flags, most: int) -> Runs:
    """Return the longest runs, the longest first, then by example; one whose n-grams are another's is left out."""
    flags = np.zeros(len(ids) + 1, np.bool_)
    flags[:-1] = (ids >= 0) & found[np.maximum(ids, 0)]
    starts = np.concatenate([flags[:1], flags[1:] & ~flags[:-1]])
    at_example = words[:-1][words[:-1] < len(ids)]
    starts[at_example] = flags[at_example]
    first = np.flatnonzero(starts)
    ends = flags.copy()
    ends[:-1] = flags[:-1] & ~(flags[1:] & ~starts[1:])
    last = np.flatnonzero(ends)
    lengths = last - first + 1
    kept: list[int] = []
    seen: set[bytes] = set()
    for run in np.argsort(-lengths, kind="stable"):
        own = np.ascontiguousarray(ids[first[run] : last[run] + 1]).tobytes()
        if own not in seen:
            seen.add(own)
            kept.append(int(run))
            if len(kept) == most:
                break
    chosen = np.array(kept, np.int64)
    examples = np.searchsorted(words, first[chosen], side="right") - 1
    return Runs(examples, first[chosen] - words[examples], lengths[chosen])
