"""Finds where words begin and end, by bit masks of the bytes that belong to words; numba helpers for `word_scan`.

ASCII is processed in blocks of 64 bytes; other characters are looked up one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import (
    LARGE_BLOCK,
    apostrophe_bits,
    ascii_word_bits,
    bit_count,
    byte_at,
    lead_bits,
    line_end_bits,
    lowest_bit,
    put_word,
)
from pipelines.algorithms.kernels.compilation import helper
from pipelines.algorithms.ngrams.character_tables import CHANGED, DOTTED_I, UNSPACED, WORD, character_tables
from pipelines.algorithms.ngrams.words import Normalization

APOSTROPHE, CURLY_APOSTROPHE = 0x27, 0x2019
SPAN_SLACK = 4

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE, _ONE, _TOP, _BLOCK = np.uint64(0), np.uint64(1), np.uint64(63), np.uint64(64)


class Reading(NamedTuple):
    """How kernels read words: the tables of characters, and what becomes of apostrophes and lines.

    `is_shingling`: see `words.Shingling`.
    """

    pages: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.uint32]
    drop_apostrophes: bool
    stop_at_lines: bool
    is_shingling: bool


class Bits(NamedTuple):
    """Buffers for the bits of a piece of text, one word of 64 bits per 64 bytes.

    `words`: the byte belongs to a word; `rare`: normalization changes it, and it is not an ASCII letter; `lines`: it
    ends a line; `apostrophes`: one begins there; `breaks`: a word may begin or end there even next to another one.
    `last` is a padded copy of the last block of a buffer.
    """

    words: npt.NDArray[np.uint64]
    rare: npt.NDArray[np.uint64]
    lines: npt.NDArray[np.uint64]
    apostrophes: npt.NDArray[np.uint64]
    breaks: npt.NDArray[np.uint64]
    last: npt.NDArray[np.uint8]


def reading_of(normalization: Normalization) -> Reading:
    """Return the arguments of kernels for a normalization."""
    tables = character_tables(normalization)
    drop, stop = normalization.apostrophes == "drop", normalization.lines == "stop"
    return Reading(tables.pages, tables.entries, drop, stop, normalization.is_shingling)


def new_bits(size: int) -> Bits:
    """Allocate bits for pieces of `size` bytes."""
    blocks = size // LARGE_BLOCK + 2
    return Bits._make([*(np.empty(blocks, np.uint64) for _ in range(5)), np.zeros(LARGE_BLOCK, np.uint8)])


@helper
def find_spans(buffer, start, stop, reading, bits, starts, ends, words):  # type: ignore[no-untyped-def]
    """Append where the words of the piece from `start` to `stop` begin and end, after the first `words` entries.

    Returns the number of entries, and whether any bit of `rare` is set.
    """
    blocks = _mark(buffer, start, stop, reading, bits)
    all_words, all_rare, all_breaks = bits.words, bits.rare, bits.breaks
    carry = any_rare = _NONE
    begun = ended = words
    for block in range(blocks):
        inside, breaks = all_words[block], all_breaks[block]
        shifted = (inside << _ONE) | carry
        carry = inside >> _TOP
        any_rare |= all_rare[block]
        begun = _put_positions(starts, begun, start + block * LARGE_BLOCK, inside & (~shifted | breaks))
        ended = _put_positions(ends, ended, start + block * LARGE_BLOCK, shifted & (~inside | breaks))
    return ended, any_rare != _NONE


@helper
def _put_positions(positions, size, at, bits):  # type: ignore[no-untyped-def]
    """Append the positions of the bits that are set; entries up to `SPAN_SLACK` later are overwritten.

    Writing entries four at a time, whether or not so many bits are left, mispredicts fewer branches.
    """
    end = size + bit_count(bits)
    for entry in range(size, end, SPAN_SLACK):
        for step in range(SPAN_SLACK):
            put_word(positions, entry + step, at + lowest_bit(bits))
            bits &= bits - _ONE
    return end


@helper
def _mark(buffer, start, stop, reading, bits):  # type: ignore[no-untyped-def]
    """Fill in the bits of the piece from `start` to `stop`; return how many blocks it has, the last never full."""
    all_words, all_rare, all_lines, all_apostrophes, all_breaks, tail = bits
    pages, entries, drop, stop_at_lines, _ = reading
    blocks = (stop - start) // LARGE_BLOCK + 1
    all_words[0] = all_rare[0] = all_breaks[0] = _NONE
    any_apostrophe = _NONE
    for block in range(blocks):
        at = start + block * LARGE_BLOCK
        within = _ALL if stop - at >= LARGE_BLOCK else (_ONE << np.uint64(stop - at)) - _ONE
        if at + LARGE_BLOCK <= len(buffer):
            words, leads, lines, apostrophes = _block(buffer, at, stop_at_lines, drop)
        else:
            for step in range(len(buffer) - at):
                tail[step] = byte_at(buffer, at + step)
            words, leads, lines, apostrophes = _block(tail, 0, stop_at_lines, drop)
        all_words[block] |= words & within
        all_words[block + 1] = all_rare[block + 1] = all_breaks[block + 1] = _NONE
        all_lines[block] = lines & within
        apostrophes &= within
        leads &= within
        while leads != _NONE:
            bit = lowest_bit(leads)
            leads &= leads - _ONE
            code, size = character_at(buffer, at + bit, stop)
            entry = entries[pages[code >> 8], code & 0xFF]
            if entry & WORD:
                # Of İ the first byte alone: what it becomes is a letter and a mark, and the mark ends the word.
                whole = _ONE if code == DOTTED_I else (_ONE << np.uint64(size)) - _ONE
                here, there = whole << np.uint64(bit), (whole >> (_TOP - np.uint64(bit))) >> _ONE
                all_words[block] |= here
                all_words[block + 1] |= there
                if entry & UNSPACED:
                    after = np.uint64(bit + size)
                    all_breaks[block] |= _ONE << np.uint64(bit) | (_ONE << after if after <= _TOP else _NONE)
                    all_breaks[block + 1] |= _ONE << after - _BLOCK if after > _TOP else _NONE
                if entry & CHANGED:
                    all_rare[block] |= here
                    all_rare[block + 1] |= there
            elif code == CURLY_APOSTROPHE and drop:
                apostrophes |= _ONE << np.uint64(bit)
        all_apostrophes[block] = apostrophes
        any_apostrophe |= apostrophes
    if any_apostrophe != _NONE:
        _join_at_apostrophes(buffer, start, blocks, all_apostrophes, all_words, all_rare, all_breaks)
    return blocks


@helper
def _block(buffer, at, stop_at_lines, drop):  # type: ignore[no-untyped-def]
    """Return for 64 bytes: parts of words in ASCII, where other characters begin, ends of lines, apostrophes."""
    leads = lead_bits(buffer, at)
    lines = line_end_bits(buffer, at) if stop_at_lines else _NONE
    apostrophes = apostrophe_bits(buffer, at) if drop else _NONE
    return ascii_word_bits(buffer, at), leads, lines, apostrophes


@helper
def _join_at_apostrophes(buffer, start, blocks, apostrophes, words, rare, breaks):  # type: ignore[no-untyped-def]
    """Mark apostrophes between two word characters as parts of words."""
    for block in range(blocks):
        left = apostrophes[block]
        while left != _NONE:
            at = block * LARGE_BLOCK + lowest_bit(left)
            left &= left - _ONE
            size = 1 if byte_at(buffer, start + at) == APOSTROPHE else 3
            # The last block is never full, so there is a bit after each character.
            is_between = at > 0 and _is_set(words, at - 1) and _is_set(words, at + size)
            if is_between and not _is_set(breaks, at) and not _is_set(breaks, at + size):
                for position in range(at, at + size):
                    words[position >> 6] |= _ONE << np.uint64(position & 63)
                    rare[position >> 6] |= _ONE << np.uint64(position & 63)


@helper
def _is_set(bits, at):  # type: ignore[no-untyped-def]
    return (bits[at >> 6] >> np.uint64(at & 63)) & _ONE != _NONE


@helper
def is_any_set(bits, start, end):  # type: ignore[no-untyped-def]
    """Return whether any bit from `start` to before `end` is set."""
    matches = _NONE
    last = end - 1
    for block in range(start >> 6, (last >> 6) + 1):
        within = _ALL
        if block == start >> 6:
            within &= _ALL << np.uint64(start & 63)
        if block == last >> 6:
            within &= _ALL >> np.uint64(63 - (last & 63))
        matches |= bits[block] & within
    return matches != _NONE


@helper
def character_at(buffer, at, stop):  # type: ignore[no-untyped-def]
    """Return the character at a position and its bytes; U+0000 for what is cut short."""
    first = np.int64(byte_at(buffer, at))
    size = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
    if at + size > stop:
        return np.int64(0), np.int64(1)
    if first < 0x80:
        return first, np.int64(1)
    code = first & (0x7F >> size)
    for step in range(1, size):
        code = code << 6 | np.int64(byte_at(buffer, at + step)) & 0x3F
    return code, np.int64(size)
