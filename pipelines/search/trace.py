"""Finds the longest passages of a text that occur in the documents of an index, word by word."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.algorithms.ngrams.normal_words import NormalText, normalize_texts
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


@dataclasses.dataclass(frozen=True)
class Trace:
    """The passages of the first `characters` of a text, which are all of them if the time was enough."""

    passages: list[Passage]
    characters: int


def trace(index: SearchIndex, text: str, *, ngram: int = 8, limit: int = 20, max_s: float = math.inf) -> Trace:
    """Return the passages of a text, of at least `ngram` words, that occur in documents; the longest first.

    Words and n-grams are those of the overlap audit. A passage is as long as possible: with the word before or after
    it, no document has it. What is not traced after `max_s` seconds is left out. Raises UsageError if the text has
    fewer words than an n-gram.
    """
    [normal] = normalize_texts(pa.array([text]))
    words = normal.words.split()
    if len(words) < ngram:
        raise UsageError(f"the text has {len(words)} words, fewer than the {ngram} of an n-gram")

    @functools.cache  # a model may repeat itself
    def is_known(*words: str) -> bool:
        return index.find_phrase(words, 0)[0] > 0

    spans, traced = _longest_matches(len(words), ngram, lambda first, last: is_known(*words[first:last]), max_s)
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
    return Trace(passages, len(text) if traced == len(words) else _characters(text, normal, 0, traced)[1])


def _longest_matches(
    words: int, ngram: int, occurs: Callable[[int, int], bool], max_s: float
) -> tuple[list[tuple[int, int]], int]:
    """Return from which word and to before which one a text occurs, where that is not part of a longer passage.

    The second value is how many words were searched for within `max_s`, at least an n-gram. Takes a query per n-gram,
    and by bisection few longer ones, which are slow: 0.1 s for hundreds of words.
    """
    deadline = time.monotonic() + max_s
    spans, first, stop = list[tuple[int, int]](), 0, 0
    while first + ngram <= words and (first == 0 or time.monotonic() < deadline):
        if not occurs(first, first + ngram):
            first += 1
            continue
        # A passage ends before the first n-gram that does not occur.
        stop = max(stop, first + ngram)
        while stop < words and time.monotonic() < deadline and occurs(stop + 1 - ngram, stop + 1):
            stop += 1
        last = stop
        if not occurs(first, stop):
            # One before the first end to which it does not occur.
            last = bisect.bisect(range(stop), False, first + ngram + 1, key=lambda end: not occurs(first, end)) - 1
        spans.append((first, last))
        # The next passage is the first one that ends after this one.
        starts = range(last + 1 - ngram)
        first = bisect.bisect_left(starts, True, first + 1, key=lambda at: last < stop and occurs(at, last + 1))
    return spans, max(first + ngram - 1, spans[-1][1] if spans else 0)


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
