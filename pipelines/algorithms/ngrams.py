"""Word n-grams as the overlap audit counts them; the plain reference that every faster path is held to.

The paper (section 4) speaks of "lower-cased alphanumeric words with a single space as a delimiter". Here a text is
lower-cased, and a word is a longest run of characters that are letters or digits in Unicode's sense (`str.isalnum`).
Everything else, an apostrophe or a combining mark too, ends a word.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

NORMALISATION = "lower-cased alphanumeric words (Unicode), one space between words"

# For strings, \w is `str.isalnum` and the underscore.
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Return the lower-cased alphanumeric words of a text, in order. Paper, section 4."""
    return _WORD.findall(text.lower())


def ngrams(words: Sequence[str], n: int) -> Iterator[str]:
    """Yield each run of `n` words, joined by single spaces; fewer than `n` words have none. Paper, section 4."""
    return map(" ".join, zip(*(itertools.islice(words, start, None) for start in range(n)), strict=False))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where each word of `words(text)` stands in the text as it is written: (start, end) in characters."""
    lowered = text.lower()
    spans = [match.span() for match in _WORD.finditer(lowered)]
    if len(lowered) == len(text):
        return spans
    # A few characters grow when they are lower-cased (İ becomes two), which moves all that follows.
    origin = [position for position, character in enumerate(text) for _ in character.lower()]
    return [(origin[start], origin[end - 1] + 1) for start, end in spans]
