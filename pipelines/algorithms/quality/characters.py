"""The classes of characters on which tokens, lines and symbols depend, as a table for kernels."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
import regex

from pipelines.algorithms.kernels.compilation import helper

SPACE, ALPHA, DIGIT, UPPER, LOWER = 1, 2, 4, 8, 16
# A token of its own at either end of a chunk, only at its beginning, or between two letters.
EDGE, PREFIX, HYPHEN = 32, 64, 128
# Punctuation; with symbols and controls; what ends a sentence; pictures, which are tokens wherever they stand.
PUNCTUATION, SYMBOL, TERMINAL, PICTURE = 256, 512, 1024, 2048
# What `str.splitlines` takes for the end of a line; a byte after the first one of a character.
LINE_END, CONTINUATION = 4096, 8192

# The marks that spaCy's tokenizers split off at the ends of English words.
_EDGES = ",:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪…–—\"'`“”„‘’‚´«»‹›「」『』（）〔〕【】《》〈〉⟦⟧"
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
# Later characters have no class.
_END = 0x33480


@functools.cache
def character_classes() -> npt.NDArray[np.uint16]:
    """Return the classes of each character by its code; ~0.2 s."""
    everything = "".join(map(chr, [*range(0xD800), *([0x20] * 0x800), *range(0xE000, _END)]))
    classes = np.zeros(_END, np.uint16)

    def add(flag: int, test: Any) -> None:
        classes[np.fromiter(map(test, everything), np.bool_, _END)] |= flag

    categories = [unicodedata.category(character) for character in everything]
    for flag, kinds in ((PUNCTUATION, "P"), (SYMBOL, "PSC"), (PICTURE | EDGE, ("So",)), (PREFIX, ("Sc",))):
        classes[np.fromiter((category.startswith(tuple(kinds)) for category in categories), np.bool_, _END)] |= flag
    add(SPACE, str.isspace)
    add(ALPHA, str.isalpha)
    add(DIGIT, str.isdecimal)
    add(UPPER, str.isupper)
    add(LOWER, str.islower)
    for flag, characters in (
        (EDGE, _EDGES),
        (PREFIX, "§%="),
        (HYPHEN, "-–—~"),
        (LINE_END, _LINE_ENDS),
        (TERMINAL, "".join(regex.findall(r"\p{Sentence_Terminal}", everything))),
    ):
        classes[[ord(character) for character in characters]] |= flag
    return classes


@helper
def classify(data: Any, start: Any, stop: Any, table: Any, classes: Any) -> Any:
    """Fill in the class of the character that begins at each byte; return how many characters there are."""
    count, position = 0, start
    while position < stop:
        count += 1
        code, size = np.int64(data[position]), 1
        if code >= 0xC0:
            size = 2 if code < 0xE0 else (3 if code < 0xF0 else 4)
            code &= 0x3F >> (size - 1)
            for following in range(position + 1, min(stop, position + size)):
                code = code << 6 | (data[following] & 0x3F)
                classes[following - start] = CONTINUATION
        classes[position - start] = table[code] if code < _END else 0
        position += size
    return count
