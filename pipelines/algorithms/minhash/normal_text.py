"""The text that exact duplicates share: form NFC, each run of white space one space, none at the ends; and its hash.

A column of texts is `data, starts`, as in `ngrams.hashing`, with int64 `starts`.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.byte_scan import (
    LARGE_BLOCK,
    bit_count,
    blank_bits,
    byte_at,
    combining_lead_bits,
    lowest_bit,
    put_byte,
    put_word,
    space_bits,
    wide_space_lead_bits,
    word_at,
)
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.ngrams.chunks import list_chunks
from pipelines.algorithms.ngrams.word_bits import character_at

_PIECE_BYTES = 1 << 20
# A text is normalized in pieces that begin with ASCII or Han: these characters never combine with those before them.
_STARTER = re.compile(rb"[\x00-\x7f\xe4-\xe9]")
# A chunk of a long text ends after a character of ASCII, Han, Thai and the like that is not white space.
_AFTER_CHARACTER = re.compile(rb"(?<=[!-~])|(?<=[\xe0\xe4-\xec][\x80-\xbf][\x80-\xbf])")
_HASH_BYTES = 16
# Blocks are loaded, and words of 8 bytes stored, beyond the end of a chunk.
_SLACK = 2 * LARGE_BLOCK
_ALL, _NONE, _ONE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0), np.uint64(1)
_TOP = np.uint64(63)
_SPACE = ord(" ")
# The first byte of U+0300, and the end of the characters that are looked up; later ones are rare.
_COMBINING_LEAD, _END = 0xCC, 0x33500
_JAMO = range(0x1100, 0x1200)


class Column(NamedTuple):
    """UTF-8 bytes, and where each text begins in them and the last one ends."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]


def column_of(texts: pa.Array) -> Column:
    """Return the buffers of an array of strings (or large strings) without nulls; the bytes are not copied."""
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return Column(np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64))
    starts = np.frombuffer(offsets, kind)[texts.offset : texts.offset + len(texts) + 1]
    return Column(np.frombuffer(data, np.uint8), starts.astype(np.int64))


def nfc_column(texts: pa.Array) -> Column:
    """Return an array of strings without nulls in form NFC; where it has that form already, nothing is copied."""
    column = column_of(texts)
    unstable = np.zeros(len(texts), np.bool_)
    _find_unstable(as_read_only(column.data), as_read_only(column.starts), _stable_characters(), unstable)
    rows = np.flatnonzero(unstable).tolist()
    changed = {row: _normalize(column, row) for row in rows if not _is_normalized(column, row)}
    if not changed:
        return column
    data, starts = column
    sizes = np.diff(starts)
    parts, end = [], int(starts[0])
    for row, text in changed.items():
        parts += [data[end : starts[row]], np.frombuffer(text, np.uint8)]
        sizes[row], end = len(text), int(starts[row + 1])
    data = np.concatenate([*parts, data[end : starts[-1]]])
    return Column(data, np.concatenate([np.zeros(1, np.int64), sizes.cumsum()]))


@functools.cache
def _stable_characters() -> npt.NDArray[np.bool_]:
    """Return which characters are in form NFC and neither combine nor change places with others; ~30 ms."""
    is_stable = np.zeros(_END, np.bool_)
    for code, character in enumerate(map(chr, range(_END))):
        # Marks, and the letters of Korean syllables.
        is_mark = unicodedata.category(character)[0] == "M" or code in _JAMO
        is_stable[code] = not is_mark and unicodedata.is_normalized("NFC", character)
    return is_stable


@kernel
def _find_unstable(buffer, starts, is_stable, unstable):  # type: ignore[no-untyped-def]
    """Mark the texts that have a character that is not stable."""
    for number in range(len(unstable)):
        at, stop = starts[number], starts[number + 1]
        while at < stop and not unstable[number]:
            leads = _NONE
            if at + LARGE_BLOCK <= len(buffer):
                within = _ALL if stop - at >= LARGE_BLOCK else (_ONE << np.uint64(stop - at)) - _ONE
                leads = combining_lead_bits(buffer, at) & within
            else:
                for step in range(stop - at):
                    leads |= np.uint64(byte_at(buffer, at + step) >= _COMBINING_LEAD) << np.uint64(step)
            while leads != _NONE:
                code, _ = character_at(buffer, at + lowest_bit(leads), stop)
                unstable[number] |= code >= len(is_stable) or not is_stable[code]
                leads &= leads - _ONE
            at += LARGE_BLOCK


def _is_normalized(column: Column, row: int) -> bool:
    return all(unicodedata.is_normalized("NFC", piece) for piece in _pieces(column, row))


def _normalize(column: Column, row: int) -> bytes:
    return b"".join(unicodedata.normalize("NFC", piece).encode() for piece in _pieces(column, row))


def _pieces(column: Column, row: int) -> Iterator[str]:
    data, (begin, stop) = column.data, column.starts[row : row + 2].tolist()
    while begin < stop:
        match = _STARTER.search(data.data, begin + _PIECE_BYTES, stop)
        end = match.start() if match else stop
        yield data[begin:end].tobytes().decode()
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
        chunk, shift = data, 0
        if end + _SLACK > len(data):
            chunk, shift = np.concatenate([data[begin:end], np.zeros(_SLACK, np.uint8)]), begin
        if end - begin + _SLACK > len(out):
            out = np.empty(end - begin + _SLACK, np.uint8)
        if last - first > len(ends):
            ends = np.empty(last - first, np.int64)
        _collapse_space(as_read_only(chunk), shift, starts, first, last, begin, end, out, ends)
        at = 0
        for stop in ends[: last - first].tolist():
            hash.update(out[at:stop].data)
            at = stop
            if end == starts[last]:
                digests.append(hash.digest())
                hash = hashlib.blake2b(digest_size=_HASH_BYTES)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2)


@kernel
def _collapse_space(buffer, shift, starts, first, last, begin, end, out, ends):  # type: ignore[no-untyped-def]
    """Copy bytes `begin` to `end` of texts with collapsed white space; `ends` is where each text ends in `out`.

    Byte `i` of the texts is `buffer[i - shift]`. A part of a text that does not begin it has a word before it.
    """
    size = np.int64(0)
    for number in range(first, last):
        start, stop = max(starts[number], begin) - shift, min(starts[number + 1], end) - shift
        before = size
        after_space, wide = np.uint64(starts[number] >= begin), _NONE
        for at in range(start, stop, LARGE_BLOCK):
            size, after_space, wide = _collapse_block(buffer, at, stop, out, size, after_space, wide)
        if starts[number + 1] <= end and size > before and out[size - 1] == _SPACE:
            size -= 1
        ends[number - first] = size


@helper
def _collapse_block(buffer, at, stop, out, size, after_space, wide):  # type: ignore[no-untyped-def]
    """Copy 64 bytes, or those before `stop`; return the size of the output, and what the next block needs to know.

    `after_space`: 1 if white space, or the beginning of a text, is before the block. `wide`: bits of the block's first
    bytes that end a white-space character of the block before.
    """
    within = _ALL if stop - at >= LARGE_BLOCK else (_ONE << np.uint64(stop - at)) - _ONE
    spaces, leads = (space_bits(buffer, at) | wide) & within, wide_space_lead_bits(buffer, at) & within
    wide = _NONE
    while leads != _NONE:
        bit = lowest_bit(leads)
        leads &= leads - _ONE
        code, bytes_read = character_at(buffer, at + bit, stop)
        if _is_wide_space(code):
            whole = (_ONE << np.uint64(bytes_read)) - _ONE
            spaces |= whole << np.uint64(bit)
            wide |= (whole >> (_TOP - np.uint64(bit))) >> _ONE
    kept = within & ~(spaces & ((spaces << _ONE) | after_space))
    begin, left = size, kept
    while left != _NONE:
        skipped = np.uint64(lowest_bit(left))
        run = lowest_bit(~(left >> skipped))
        for step in range(0, run, 8):
            put_word(out, size + step, word_at(buffer, at + np.int64(skipped) + step))
        size += run
        left = left & ~((((_ONE << np.uint64(run - 1)) << _ONE) - _ONE) << skipped)
    replaced = spaces & kept & ~blank_bits(buffer, at)
    while replaced != _NONE:
        bit = replaced & (~replaced + _ONE)
        put_byte(out, begin + bit_count(kept & (bit - _ONE)), np.uint8(_SPACE))
        replaced ^= bit
    last = np.uint64(min(stop - at, LARGE_BLOCK) - 1)
    return size, (spaces >> last) & _ONE, wide


@helper
def _is_wide_space(code):  # type: ignore[no-untyped-def]
    """Return whether a character outside ASCII is white space for `str.split`."""
    if code < 0x2000:
        return code in (0x85, 0xA0, 0x1680)
    return code <= 0x200A or code in (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
