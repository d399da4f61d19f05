"""Words and n-grams with strings and regular expressions: the reference of all faster paths."""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Iterator, Sequence

from pipelines.algorithms.ngrams.words import DEFAULT, Normalization, is_unspaced

_APOSTROPHE = re.compile("['\u2019]")
_LINE_END = re.compile("[\n\r]")
# For strings, \w is `str.isalnum` and the underscore.
_CHARACTERS = {"unicode": r"[^\W_]", "ascii": "[a-z0-9]"}


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


def word_spans(text: str, normalization: Normalization = DEFAULT) -> list[tuple[int, int]]:
    """Return the position of each word of a text: (start, end) in characters."""
    lowered = text.lower()
    spans = [match.span() for match in word_pattern(normalization).finditer(lowered)]
    if len(lowered) == len(text):
        return spans
    # A few characters grow when they are lower-cased (İ becomes two), which shifts all later positions.
    origin = [position for position, character in enumerate(text) for _ in character.lower()]
    return [(origin[start], origin[end - 1] + 1) for start, end in spans]


@functools.cache
def word_pattern(normalization: Normalization) -> re.Pattern[str]:
    """Return a pattern of the words of lower-cased text; apostrophes that are dropped are still in them."""
    character = _CHARACTERS[normalization.letters]
    unspaced = (
        f"[{_unspaced_characters()}]" if normalization.is_shingling and normalization.letters == "unicode" else ""
    )
    run = f"(?:(?!{unspaced}){character})+" if unspaced else f"{character}+"
    word = f"{run}(?:['\u2019]{run})*" if normalization.apostrophes == "drop" else run
    return re.compile(f"{unspaced}|{word}" if unspaced else word)


@functools.cache
def _unspaced_characters() -> str:
    """Return a regular expression's ranges of all unspaced characters."""
    flags = "".join("01"[is_unspaced(chr(code))] for code in range(sys.maxunicode + 1))
    return "".join(f"{chr(run.start())}-{chr(run.end() - 1)}" for run in re.finditer("1+", flags))
