"""Lower-case form and word class of each character, as lookup tables for numba kernels.

The tables are derived from `str.lower` and `str.isalnum`, so they have Python's Unicode version. A character's entry is
`entries[pages[code >> 8], code & 255]`: flags, and in the low 21 bits the offset to its lower-case form (modulo 2**21),
so that most scripts share a page.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.ngrams.words import Normalization, is_unspaced

CODE = 0x1FFFFF
# Part of a word when lower-cased; changed by lower-casing; and the two classes that select the form of a sigma.
WORD, CHANGED, CASED, IGNORABLE = 1 << 21, 1 << 22, 1 << 23, 1 << 24
# A word of its own.
UNSPACED = 1 << 25
# The letter whose lower-case form depends on its neighbours, its two forms, and the one that becomes two characters.
SIGMA, SMALL_SIGMA, FINAL_SIGMA, DOTTED_I = 0x3A3, 0x3C3, 0x3C2, 0x130

_PAGE = 256
# All values that four bytes of UTF-8 can encode, so that lookups need no bounds check.
_NUMBERS = CODE + 1
# All other characters are not part of a word and are not changed by lower-casing; none outside the second list is
# cased or ignorable. A test checks both lists against all characters of this Python's Unicode.
_LETTERS = ((0, 0x33500), (0xE0000, 0xE0200))
_CASES = ((0, 0x3400), (0xA000, 0xAC00), (0xD700, 0xD800), (0xFA00, 0x12000), (0x13400, 0x13500), (0x16A00, 0x17000))
_MORE_CASES = ((0x1AF00, 0x1F500), (0xE0000, 0xE0200))
_STEP = 1 << 13

_Codes = npt.NDArray[np.uint32]


class CharacterTables(NamedTuple):
    """The page number of each 256 characters, uint8, and the pages, uint32 of shape (pages, 256)."""

    pages: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.uint32]


def character_tables(normalization: Normalization) -> CharacterTables:
    """Return the tables of a normalization's letters; the first call builds them in ~20 ms."""
    return _tables(normalization.letters, normalization.is_shingling)


@functools.cache
def _tables(letters: str, is_shingling: bool) -> CharacterTables:
    numbers = {bytes(4 * _PAGE): 0}
    pages = np.zeros(_NUMBERS // _PAGE, np.uint8)
    for codes in _steps(_LETTERS):
        entries = _letter_entries(codes, letters) | _case_entries(codes)
        if is_shingling and letters == "unicode":
            # The blocks of Han have no other letters: looking up their names would take 50 ms.
            is_word, is_han = entries & WORD != 0, (codes >= 0x3400) & (codes < 0xA000) | (codes >= 0x20000)
            rows = np.flatnonzero(is_word & ~is_han)
            is_word[rows] = [is_unspaced(character) for character in _text(codes[rows])]
            entries[is_word] |= UNSPACED
        for page, start in enumerate(range(0, len(codes), _PAGE), codes[0] // _PAGE):
            pages[page] = numbers.setdefault(entries[start : start + _PAGE].tobytes(), len(numbers))
    return CharacterTables(pages, np.frombuffer(b"".join(numbers), np.uint32).reshape(-1, _PAGE))


def _steps(ranges: tuple[tuple[int, int], ...]) -> Iterator[_Codes]:
    for first, end in ranges:
        for start in range(first, end, _STEP):
            yield np.arange(start, min(start + _STEP, end), dtype=np.uint32)


def _letter_entries(codes: _Codes, letters: str) -> _Codes:
    lowered = _lowered(codes)
    entries: _Codes = (lowered - codes) & np.uint32(CODE)
    entries[lowered != codes] |= CHANGED
    if letters == "ascii":
        entries[((lowered >= 0x61) & (lowered <= 0x7A)) | ((lowered >= 0x30) & (lowered <= 0x39))] |= WORD
    else:
        for run in re.finditer(r"[^\W_]+", _text(lowered)):
            entries[run.start() : run.end()] |= WORD
    return entries


def _case_entries(codes: _Codes) -> _Codes:
    """Find the characters that make a following sigma final, by themselves or by the character before them."""
    entries = np.zeros(len(codes), np.uint32)
    is_candidate = np.zeros(len(codes), np.bool_)
    for first, end in _CASES + _MORE_CASES:
        is_candidate |= (codes >= first) & (codes < end)
    rows = is_candidate.nonzero()[0]
    rows = rows[_makes_final(codes[rows], (0x61,))]
    is_cased = _makes_final(codes[rows], ())
    entries[rows] = np.where(is_cased, CASED, IGNORABLE)
    return entries


def _makes_final(codes: _Codes, before: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return for each character whether a sigma after `before` and it is final."""
    at = len(before)
    rows = np.empty((len(codes), at + 3), np.uint32)
    rows[:] = (*before, 0, SIGMA, 0x0A)
    rows[:, at] = codes
    final: npt.NDArray[np.bool_] = _lowered(rows)[:, at + 1] == FINAL_SIGMA
    return final


def _lowered(codes: _Codes) -> _Codes:
    """Lower-case characters as one text; İ, whose lower-case form has two characters, becomes the first of them."""
    return np.frombuffer(
        _text(np.where(codes == DOTTED_I, ord("i"), codes)).lower().encode("utf-32-le", "surrogatepass"), np.uint32
    ).reshape(codes.shape)


def _text(codes: _Codes) -> str:
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
