"""Word n-grams of the overlap audit: the reference implementation of all faster paths.

The paper (section 4) speaks of "lower-cased alphanumeric words with a single space as a delimiter" and leaves the rest
open. Here a text is lower-cased as a whole (`str.lower`), and a word is a maximal run of Unicode letters or digits
(`str.isalnum`). Any other character, including an apostrophe or a combining mark, ends a word. `Normalization` has the
other interpretations.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Normalization:
    """What the paper leaves open about words and n-grams; reports use the defaults unless options change them.

    `apostrophes`: "split" ends a word at an apostrophe (U+0027, U+2019) as at any other sign; "drop" removes it
    between two word characters (don't becomes dont). `letters`: "unicode" has the letters and
    digits of all scripts, "ascii" only a-z and 0-9 of the lower-cased text. `lines`: "cross" lets an n-gram
    span lines, "stop" does not (a line ends at each "\\n" or "\\r").
    """

    apostrophes: Literal["split", "drop"] = "split"
    letters: Literal["unicode", "ascii"] = "unicode"
    lines: Literal["cross", "stop"] = "cross"


DEFAULT = Normalization()


def describe(normalization: Normalization) -> str:
    """Describe a normalization in one line for reports."""
    letters = {"unicode": "Unicode", "ascii": "a-z and 0-9 only"}[normalization.letters]
    apostrophes = {"split": "", "drop": ", apostrophes within words left out"}[normalization.apostrophes]
    lines = {"cross": "", "stop": ", n-grams end where lines end"}[normalization.lines]
    return f"lower-cased alphanumeric words ({letters}), one space between words{apostrophes}{lines}"


# For strings, \w is `str.isalnum` and the underscore.
_CHARACTERS = {"unicode": r"[^\W_]", "ascii": "[a-z0-9]"}
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
    return numbered


def word_spans(text: str, normalization: Normalization = DEFAULT) -> list[tuple[int, int]]:
    """Return the position of each word of `words(text)` in the original text: (start, end) in characters."""
    lowered = text.lower()
    spans = [match.span() for match in _word_pattern(normalization).finditer(lowered)]
    if len(lowered) == len(text):
        return spans
    # A few characters grow when they are lower-cased (İ becomes two), which shifts all later positions.
    origin = [position for position, character in enumerate(text) for _ in character.lower()]
    return [(origin[start], origin[end - 1] + 1) for start, end in spans]


@functools.cache
def _word_pattern(normalization: Normalization) -> re.Pattern[str]:
    run = _CHARACTERS[normalization.letters] + "+"
    return re.compile(f"{run}(?:['\u2019]{run})*" if normalization.apostrophes == "drop" else run)


def _lowered_words(lowered: str, normalization: Normalization) -> list[str]:
    matches: list[str] = _word_pattern(normalization).findall(lowered)
    if normalization.apostrophes == "drop":
        return [_APOSTROPHE.sub("", word) for word in matches]
    return matches
