"""Finds the longest passages of a text that occur in the documents of an index, word by word."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.algorithms.ngrams.normal_words import NormalText, normalize_texts
from pipelines.corpus.tables import CorpusTables
from pipelines.errors import UsageError
from pipelines.search.query import SearchIndex

# Documents that are named for a passage.
_MAX_DOCUMENTS = 10


@dataclasses.dataclass(frozen=True)
class Passage:
    """A part of a text that occurs in documents: its characters, its words, and how many documents have it.

    `documents` are some of them: `id`, `url`, and the characters `start` to `end` of the passage in their text.
    """

    text: str
    start: int
    end: int
    words: int
    count: int
    documents: list[dict[str, Any]]


def trace(
    index: SearchIndex, tables: CorpusTables | None, text: str, *, ngram: int = 8, limit: int = 20, max_s: float = 1e9
) -> list[Passage]:
    """Return the passages of a text, of at least `ngram` words, that occur in documents; the longest first.

    Words and n-grams are those of the overlap audit. A passage is as long as possible: with the word before or after
    it, no document has it. If the index is stale, documents that `tables` no longer have are left out.

    Raises UsageError if the text has fewer words than an n-gram, or if the index was searched for `max_s` seconds.
    """
    [normal] = normalize_texts(pa.array([text]))
    words = normal.words.split()
    if len(words) < ngram:
        raise UsageError(f"the text has {len(words)} words, fewer than the {ngram} of an n-gram")
    end = time.monotonic() + max_s

    @functools.cache  # a model may repeat itself
    def is_known(*words: str) -> bool:
        if time.monotonic() > end:
            raise UsageError(f"the text was traced for {max_s:.0f} s without an end; trace a part of it")
        return index.find_phrase(words, 0)[0] > 0

    spans = [*_longest_matches(len(words), ngram, lambda first, last: is_known(*words[first:last]))]
    spans.sort(key=lambda span: (span[0] - span[1], span[0]))
    passages = []
    for first, last in spans[:limit]:
        count, documents = index.find_phrase(words[first:last], _MAX_DOCUMENTS)
        rows = [
            {"id": document.id, "url": document.url, "start": place[0], "end": place[1]}
            for document in documents
            if (place := _find_words(document.text, words[first:last]))
        ]
        start, end = _characters(text, normal, first, last)
        passages.append(Passage(text[start:end], start, end, last - first, count, rows))
    if index.is_stale and tables is not None:
        ids = [row["id"] for passage in passages for row in passage.documents]
        known = {row["id"] for row in tables.rows("SELECT id FROM documents WHERE id IN (SELECT unnest(?))", [ids])}
        for passage in passages:
            passage.documents[:] = [row for row in passage.documents if row["id"] in known]
    return passages


def _longest_matches(words: int, ngram: int, occurs: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """Yield from which word and to before which one a text occurs, where that is not part of a longer passage.

    Takes a query per n-gram, and by bisection few longer ones, which are slow: 0.1 s for hundreds of words.
    """
    is_present = [occurs(start, start + ngram) for start in range(words - ngram + 1)]
    for present, run in itertools.groupby(range(len(is_present)), is_present.__getitem__):
        starts = [*run]
        first, stop = starts[0], starts[-1] + ngram
        places = range(stop)
        while present:
            last = stop
            if not occurs(first, stop):
                # One before the first end to which it does not occur.
                last = bisect.bisect(places, False, first + ngram + 1, key=lambda end: not occurs(first, end)) - 1
            yield first, last
            if last == stop:
                break
            first = bisect.bisect_left(places, True, first + 1, last + 1 - ngram, key=lambda at: occurs(at, last + 1))


def _find_words(text: str, words: Sequence[str]) -> tuple[int, int] | None:
    """Return the characters of a text that have these words, None if it has not."""
    [normal] = normalize_texts(pa.array([text]))
    spaced = f" {normal.words}"
    if (position := spaced.find(f" {' '.join(words)} ")) < 0:
        return None
    first = spaced.count(" ", 0, position)
    return _characters(text, normal, first, first + len(words))


def _characters(text: str, normal: NormalText, first: int, last: int) -> tuple[int, int]:
    """Return the characters of a text from its word `first` to before `last`."""
    # A word may end inside of a character: `İ` in lower case is a letter and a mark.
    is_first_byte = np.frombuffer(text.encode(), np.uint8) & 0xC0 != 0x80
    return int(is_first_byte[: normal.starts[first]].sum()), int(is_first_byte[: normal.ends[last - 1]].sum())
