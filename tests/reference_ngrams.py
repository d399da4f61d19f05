"""Words and n-grams with strings and regular expressions: the reference of all faster paths."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from pipelines.algorithms.ngrams.words import DEFAULT, Normalization, word_pattern

_APOSTROPHE = re.compile("['\u2019]")
_LINE_END = re.compile("[\n\r]")


def words(text: str, normalization: Normalization = DEFAULT) -> list[str]:
    """Return the lower-cased alphanumeric words of a text, in order. Paper, section 4."""
    return _lowered_words(text.lower(), normalization)


def ngrams(words: Sequence[str], n: int) -> Iterator[str]:
    """Yield each run of `n` words, joined by single spaces; fewer than `n` words have none. Paper, section 4."""
    return map(" ".join, zip(*(itertools.islice(words, start, None) for start in range(n)), strict=False))


def segments(text: str, normalization: Normalization = DEFAULT) -> list[list[str]]:
    """Return `words(text)` split into the runs that no n-gram crosses, none of them empty."""
    # Lower-cased before it is split into lines: the form of a final sigma may depend on the next line.
    lowered = text.lower()
    lines = [lowered] if normalization.lines == "cross" else _LINE_END.split(lowered)
    runs = (_lowered_words(line, normalization) for line in lines)
    return [run for run in runs if run]


def text_ngrams(text: str, n: int, normalization: Normalization = DEFAULT) -> list[tuple[int, str]]:
    """Return the n-grams of a text, each with the number of its first word in `words(text)`."""
    numbered: list[tuple[int, str]] = []
    first = 0
    for run in segments(text, normalization):
        numbered += enumerate(ngrams(run, n), first)
        first += len(run)
    if normalization.is_shingling and normalization.lines == "cross" and 0 < first < n:
        return [(0, " ".join(words(text, normalization)))]
    return numbered


def _lowered_words(lowered: str, normalization: Normalization) -> list[str]:
    matches: list[str] = word_pattern(normalization).findall(lowered)
    if normalization.apostrophes == "drop":
        return [_APOSTROPHE.sub("", word) for word in matches]
    return matches
