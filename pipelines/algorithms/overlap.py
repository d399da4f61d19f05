"""How much of a benchmark a corpus holds, counted from which n-grams of its examples are found. Paper, section 4."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.ngrams import ngrams, word_spans, words

# Examples by the share of their n-grams that is found: none at all, then steps of 5%.
HISTOGRAM_STEPS = 20
_KEPT_PASSAGES = 200
_CONTEXT_CHARACTERS = 240
_PASSAGE_CHARACTERS = 1500
_SHOWN_SOURCES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """An n-gram that the corpus holds: how often, and the first document with it; a Bloom filter knows neither."""

    count: int | None = None
    document_id: str | None = None
    url: str | None = None


@dataclasses.dataclass(frozen=True)
class Passage:
    """A longest run of words whose n-grams are all found: as it stands in its example, with what stands around it.

    `sources` are documents that hold n-grams of it, (id, url), those with the most first.
    """

    place: str
    before: str
    text: str
    after: str
    words: int
    sources: tuple[tuple[str, str | None], ...]


class Tally:
    """What is counted for one benchmark, example by example."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._distinct: set[str] = set()
        self._distinct_found: set[str] = set()
        # A heap of the longest, and the words of each that is in it.
        self._passages: list[tuple[int, int, int, str, Passage]] = []
        self._kept_words: set[str] = set()
        self.ngrams = self.overlapping = 0
        self.examples = self.examples_any = self.examples_15 = self.examples_50 = self.too_short = 0
        self.longest_words = 0
        self.histogram = [0] * (1 + HISTOGRAM_STEPS)

    def add(self, place: str, text: str, found: Mapping[str, Match]) -> list[tuple[int, str, Match]]:
        """Count one example; return its n-grams that are found, each with its position in words from 0."""
        text_words = words(text)
        each = list(ngrams(text_words, self._n))
        hits = [(position, ngram, found[ngram]) for position, ngram in enumerate(each) if ngram in found]
        self.examples += 1
        self.longest_words = max(self.longest_words, len(text_words))
        self.ngrams += len(each)
        self.overlapping += len(hits)
        self._distinct.update(each)
        self._distinct_found.update(ngram for _, ngram, _ in hits)
        if not each:
            self.too_short += 1
            return hits
        self._count_share(len(hits), len(each))
        if hits:
            self._keep_passages(place, text, text_words, hits)
        return hits

    def row(self, name: str, split: str | None) -> dict[str, Any]:
        """Return the benchmark's entry in `report.json`; shares are in percent."""
        return {
            "name": name,
            "split": split,
            "ngrams": self.ngrams,
            "overlapping": self.overlapping,
            "percent_positions": _percent(self.overlapping, self.ngrams),
            "percent_distinct": _percent(len(self._distinct_found), len(self._distinct)),
            "examples": self.examples,
            "examples_any": self.examples_any,
            "examples_15": self.examples_15,
            "examples_50": self.examples_50,
            "too_short": self.too_short,
        }

    def longest_passages(self, count: int) -> list[Passage]:
        """Return the longest passages, the longest first; one that is there more than once is shown once."""
        ordered = sorted(self._passages, key=lambda kept: kept[:3], reverse=True)
        return [passage for *_, passage in ordered[:count]]

    def _count_share(self, hits: int, positions: int) -> None:
        self.examples_any += hits > 0
        self.examples_15 += hits * 100 >= positions * 15
        self.examples_50 += hits * 100 >= positions * 50
        self.histogram[-(-hits * HISTOGRAM_STEPS // positions)] += 1

    def _keep_passages(
        self, place: str, text: str, text_words: Sequence[str], hits: Sequence[tuple[int, str, Match]]
    ) -> None:
        spans = word_spans(text)
        for run in _runs(hits):
            first, last = run[0][0], run[-1][0] + self._n - 1
            normal = " ".join(text_words[first : last + 1])
            if normal in self._kept_words:
                continue  # else one that is often repeated would drive all others out
            self._kept_words.add(normal)
            passage = _passage(place, text, (spans[first][0], spans[last][1]), last - first + 1, run)
            heapq.heappush(self._passages, (last - first + 1, -self.examples, -first, normal, passage))
            if len(self._passages) > _KEPT_PASSAGES:
                self._kept_words.remove(heapq.heappop(self._passages)[3])


def _runs(hits: Sequence[tuple[int, str, Match]]) -> list[list[tuple[int, str, Match]]]:
    """Divide hits into runs of neighbouring positions."""
    runs: list[list[tuple[int, str, Match]]] = []
    for hit in hits:
        if runs and hit[0] == runs[-1][-1][0] + 1:
            runs[-1].append(hit)
        else:
            runs.append([hit])
    return runs


def _passage(
    place: str, text: str, span: tuple[int, int], word_count: int, run: Sequence[tuple[int, str, Match]]
) -> Passage:
    start, end = span
    before, after, inside = text[max(0, start - _CONTEXT_CHARACTERS) : start], text[end:], text[start:end]
    if start > _CONTEXT_CHARACTERS:
        before = "… " + _from_next_word(before)
    if len(after) > _CONTEXT_CHARACTERS:
        after = _from_next_word(after[:_CONTEXT_CHARACTERS][::-1])[::-1] + " …"
    if len(inside) > _PASSAGE_CHARACTERS:
        inside = inside[:_PASSAGE_CHARACTERS] + "…"
    documents = Counter((hit.document_id, hit.url) for _, _, hit in run if hit.document_id is not None)
    sources = tuple((str(id), url) for (id, url), _ in documents.most_common(_SHOWN_SOURCES))
    return Passage(place, before, inside, after, word_count, sources)


def _from_next_word(text: str) -> str:
    """Leave out the part of a word that a text begins with."""
    _, space, rest = text.partition(" ")
    return rest if space else text


def _percent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 6) if whole else 0.0
