"""The text that exact duplicates share, in form NFC with single spaces between words, and its hash.

A column of texts is `data, starts`, as in `ngrams.hashing`, with int64 `starts`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.kernels.byte_scan import (
    BLOCK,
    blanks,
    byte_at,
    lowest_bit,
    other_space_leads,
    put_byte,
    put_word,
    word_at,
)
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.ngrams.word_bits import character_at
from pipelines.algorithms.ngrams.word_scan import list_chunks

_PIECE_BYTES = 1 << 19
_COMBINING_LEAD = 0xCC  # the first byte of U+0300
# A text is normalized in pieces that begin with a character that never combines with those before it: ASCII, Han, kana,
# a consonant of Thai or Lao.
_STARTER = re.compile(rb"[\x00-\x7f\xe4-\xe9]|\xe3[\x81\x83]|\xe0[\xb8\xba][\x81-\xb0]")
# A chunk of a long text ends after a character of ASCII, Han, Thai and the like that is not white space.
_AFTER_CHARACTER = re.compile(rb"(?<=[!-~])|(?<=[\xe0\xe4-\xec][\x80-\xbf][\x80-\xbf])")
# Of each character: whether it is stable, 1 or -1; 0 until a text has it.
_STABILITY = np.zeros(0x110000, np.int8)
_HASH_BYTES = 16
_SPACE = ord(" ")
_ONE, _BLOCK_END = np.uint64(1), np.uint64(1 << BLOCK)
# What a byte begins: white space, or a character that may be white space.
_BLANK, _WIDE_LEAD = 1, 2
_KINDS = np.zeros(256, np.uint8)
_KINDS[[*range(9, 14), *range(0x1C, 0x21)]] = _BLANK
_KINDS[[0xC2, 0xE1, 0xE2, 0xE3]] = _WIDE_LEAD


class Column(NamedTuple):
    """UTF-8 bytes, and where each text begins in them and the last one ends."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]


def nfc_column(texts: pa.Array) -> Column:
    """Return an array of strings without nulls in form NFC; where it has that form already, nothing is copied."""
    data, offsets = text_arrays(texts)
    column = Column(data, offsets.astype(np.int64))
    changed = {
        row: b"".join(unicodedata.normalize("NFC", piece.tobytes().decode()).encode() for piece in _pieces(column, row))
        for row in range(len(texts))
        if not all(map(_is_normalized, _pieces(column, row)))
    }
    if not changed:
        return column
    starts = column.starts
    sizes = np.diff(starts)
    parts, end = [], int(starts[0])
    for row, text in changed.items():
        parts += [data[end : starts[row]], np.frombuffer(text, np.uint8)]
        sizes[row], end = len(text), int(starts[row + 1])
    data = np.concatenate([*parts, data[end : starts[-1]]])
    return Column(data, np.concatenate([np.zeros(1, np.int64), sizes.cumsum()]))


def _is_normalized(piece: npt.NDArray[np.uint8]) -> bool:
    """Return whether a piece of text is in form NFC; it keeps all characters before U+0300."""
    if piece.max() < _COMBINING_LEAD:
        return True
    codes = np.frombuffer(piece[piece >= 0x80].tobytes().decode().encode("utf-32-le"), np.uint32)
    for code in np.unique(codes[_STABILITY[codes] == 0]).tolist():
        _STABILITY[code] = 1 if _is_stable(chr(code)) else -1
    return bool((_STABILITY[codes] > 0).all()) or unicodedata.is_normalized("NFC", piece.tobytes().decode())


def _is_stable(character: str) -> bool:
    """Return whether form NFC keeps a character whatever is before it: not marks, letters of Korean syllables.

    Nor those of some rare scripts: in recent versions of Unicode some of their letters combine.
    """
    may_combine = unicodedata.category(character)[0] == "M" or "\u1100" <= character < "\u1200"
    is_rare = "\U00010000" <= character < "\U0001f000"
    return not may_combine and not is_rare and unicodedata.is_normalized("NFC", character)


def _pieces(column: Column, row: int) -> Iterator[npt.NDArray[np.uint8]]:
    data, (begin, stop) = column.data, column.starts[row : row + 2].tolist()
    while begin < stop:
        match = _STARTER.search(data.data, begin + _PIECE_BYTES, stop)
        end = match.start() if match else stop
        yield data[begin:end]
        begin = end


def text_hashes(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the 128-bit BLAKE2b hashes of texts (an array of strings without nulls) as (texts, 2) numbers.

    Two texts have the same hash if they differ in white space only, or in the form of their characters.
    """
    return hash_column(nfc_column(texts))


def hash_column(column: Column) -> npt.NDArray[np.uint64]:
    """Return `text_hashes` of texts in form NFC; memory: ~256 KiB, or a text with other characters only."""
    data, starts = as_read_only(column.data), as_read_only(column.starts)
    digests: list[bytes] = []
    hash = hashlib.blake2b(digest_size=_HASH_BYTES)
    out, ends = np.empty(0, np.uint8), np.empty(0, np.int64)
    for first, last, begin, end in list_chunks(data, starts, _AFTER_CHARACTER):
        if end - begin >= len(out):
            out = np.empty(end - begin + 1, np.uint8)
        if last - first > len(ends):
            ends = np.empty(last - first, np.int64)
        _collapse_space(data, starts, first, last, begin, end, out, ends)
        at = 0
        for stop in ends[: last - first].tolist():
            hash.update(out[at:stop].data)
            at = stop
            if end == starts[last]:
                digests.append(hash.digest())
                hash = hashlib.blake2b(digest_size=_HASH_BYTES)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2)


@kernel
def _collapse_space(data, starts, first, last, begin, end, out, ends):  # type: ignore[no-untyped-def]
    """Copy bytes `begin` to `end` of texts with collapsed white space; `ends` is where each text ends in `out`.

    A part of a text that does not begin it has a word before it.
    """
    size = np.int64(0)
    for number in range(first, last):
        at, stop = max(starts[number], begin), min(starts[number + 1], end)
        before, after_space = size, np.uint8(starts[number] >= begin)
        while at < stop:
            if at + BLOCK <= stop:
                # Words with single spaces are copied as they are, up to the first byte that needs a closer look.
                spaces = blanks(data, at)
                repeated = spaces & (spaces << _ONE | np.uint64(after_space))
                run = lowest_bit(other_space_leads(data, at) | repeated | _BLOCK_END)
                for step in range(0, BLOCK, 8):
                    put_word(out, size + step, word_at(data, at + step))
                if run:
                    after_space = np.uint8(spaces >> np.uint64(run - 1) & _ONE)
                at += run
                size += run
                if run == BLOCK:
                    continue
            byte, bytes_read = byte_at(data, at), 1
            kind = _KINDS[byte]
            if kind == _WIDE_LEAD:
                code, bytes_read = character_at(data, at, stop)
                kind = np.uint8(_is_wide_space(code))
                for step in range(0 if kind else bytes_read - 1):
                    put_byte(out, size, byte_at(data, at + step))
                    size += 1
                byte = byte_at(data, at + bytes_read - 1)
            # Written in any case, to be overwritten: a branch would be mispredicted at every word.
            put_byte(out, size, np.uint8(_SPACE) if kind else byte)
            size += 1 - (kind & after_space)
            after_space = kind
            at += bytes_read
        if starts[number + 1] <= end and size > before and out[size - 1] == _SPACE:
            size -= 1
        ends[number - first] = size


@helper
def _is_wide_space(code):  # type: ignore[no-untyped-def]
    """Return whether a character outside ASCII is white space for `str.split`."""
    if code < 0x2000:
        return code in (0x85, 0xA0, 0x1680)
    return code <= 0x200A or code in (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
