"""Counts the words of GPT-2's split over whole columns of text: one pass over bytes, without a Python object per word.

Words are looked up in a hash table with open addressing, in batches, so that the processor can wait for several memory
accesses at once. A slot holds a word's key, its number and its counts. The key of a word of at most
seven bytes is the word itself and its length, so nothing else has to be compared; that of a longer one is a hash.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.split import MAX_WORDS_PER_STEP, after_contraction, next_words
from pipelines.algorithms.bpe.split_classes import split_classes
from pipelines.algorithms.kernels.byte_scan import byte_at, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel

_INITIAL_WORDS, _INITIAL_BYTES = 1 << 12, 1 << 16
# Slots for each word that there is room for.
_SLOTS_PER_WORD = 2
_BATCH_WORDS = 4096
# Bytes after the last word, so that eight can be loaded at any position of one.
_SLACK = 8
_SHORT = 7
_KEY, _NUMBER, _COUNTS = 0, 1, 2

_ONE, _ZERO = np.uint64(1), np.uint64(0)
_HALF, _LENGTH_SHIFT = np.uint64(32), np.uint64(56)
_HASHED = np.uint64(1 << 63)
_SPREAD, _STIR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)

_classes = functools.cache(split_classes)


class WordTable:
    """The distinct words of texts, in the order in which they first occurred, with counts in several columns."""

    def __init__(
        self,
        columns: int = 1,
        *,
        batch_words: int = _BATCH_WORDS,
        initial_words: int = _INITIAL_WORDS,
        initial_bytes: int = _INITIAL_BYTES,
    ) -> None:
        self._columns, self._batch_words = columns, batch_words
        self._initial_words, self._initial_bytes = initial_words, initial_bytes
        self._begins = np.zeros(self._batch_words + 1, np.int64)
        self._keys = np.zeros(self._batch_words, np.uint64)
        self._column_of = np.zeros(self._batch_words, np.uint8)
        self.clear()

    def clear(self) -> None:
        """Forget all words."""
        self.words = self.word_bytes = 0
        self._slots = np.zeros((_SLOTS_PER_WORD * self._initial_words, _COUNTS + self._columns), np.uint64)
        self._slot_of = np.zeros(self._initial_words, np.int64)
        self._ends = np.zeros(self._initial_words, np.int64)
        self._known = np.zeros(self._initial_bytes, np.uint8)

    def add(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32 | np.int64], columns: npt.NDArray[np.uint8]
    ) -> None:
        """Count the words of the texts `data[starts[i]:starts[i + 1]]`, which are UTF-8, each in its text's column."""
        data, starts = as_read_only(data), starts.astype(np.int64)
        at = (0, -1, 0, 0)
        while True:
            *at, self.words, self.word_bytes, needed = _count(
                data, starts, columns, *at, self._begins, self._keys, self._column_of, _classes(), self._slots,
                self._slot_of, self._ends, self._known, self.words, self.word_bytes,
            )  # fmt: skip
            if not needed:
                return
            self._make_room(needed)

    def column(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the bytes of all words, and the start of each word in them, followed by the end of the last."""
        starts = np.zeros(self.words + 1, np.int64)
        starts[1:] = self._ends[: self.words]
        return self._known[: self.word_bytes], starts

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how often each word occurs: shape (words, columns)."""
        return self._slots[self._slot_of[: self.words], _COUNTS:].astype(np.int64)

    def _make_room(self, needed: int) -> None:
        """Make room for another batch of words, of `needed` bytes."""
        if self.words + self._batch_words > len(self._ends):
            self._ends, self._slot_of = (
                np.concatenate([column, np.zeros_like(column)]) for column in (self._ends, self._slot_of)
            )
            larger = np.zeros((2 * len(self._slots), self._slots.shape[1]), np.uint64)
            _rehash(self._slots, larger, self._slot_of)
            self._slots = larger
        room = self.word_bytes + needed + _SLACK
        if room > len(self._known):
            known = np.zeros(max(room, 2 * len(self._known)), np.uint8)
            known[: self.word_bytes] = self._known[: self.word_bytes]
            self._known = known


def count_words(texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """Return the words of texts, which are UTF-8, with their counts, in the order in which they first occur."""
    table = WordTable()
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    table.add(np.frombuffer(b"".join(texts), np.uint8), starts, np.zeros(len(texts), np.uint8))
    data, begins = table.column()
    words = [data[begin:end].tobytes() for begin, end in itertools.pairwise(begins.tolist())]
    return list(zip(words, table.counts()[:, 0].tolist(), strict=True))


def bucket_of_words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each word `data[starts[i]:starts[i + 1]]`, by a hash of its bytes (FNV-1a)."""
    chosen = np.empty(len(starts) - 1, np.int32)
    _assign_buckets(data, starts, buckets, chosen)
    return chosen


@kernel
def _assign_buckets(data, starts, buckets, chosen):  # type: ignore[no-untyped-def]
    for word in range(len(chosen)):
        hashed = np.uint64(0xCBF29CE484222325)
        for at in range(starts[word], starts[word + 1]):
            hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        chosen[word] = np.int32((hashed >> np.uint64(32)) % np.uint64(buckets))


@kernel
def _count(  # type: ignore[no-untyped-def]
    data, starts, columns, text, pos, forced, waiting, begins, keys, column_of, classes, slots, slot_of, ends, known,
    words, word_bytes,
):  # fmt: skip
    """Count from a position on; return the position reached, the sizes, and the bytes to make room for, 0 at the end.

    `waiting` words have started, the last of which may be unfinished; `pos` is -1 before a text.
    """
    texts = len(starts) - 1
    while True:
        text, pos, forced, waiting = _gather(
            data, starts, columns, text, pos, forced, waiting, begins, keys, column_of, classes
        )
        whole = waiting if text == texts else waiting - 1
        if whole > 0:
            bytes_together = begins[whole] - begins[0]
            if words + whole > len(ends) or word_bytes + bytes_together + _SLACK > len(known):
                return text, pos, forced, waiting, words, word_bytes, bytes_together
            for word in range(whole):
                keys[word] = _key_of(data, begins[word], begins[word + 1] - begins[word])
            words, word_bytes = _look_up(
                data, begins, keys, column_of, whole, slots, slot_of, ends, known, words, word_bytes
            )
        if text == texts:
            return text, pos, forced, waiting, words, word_bytes, np.int64(0)
        begins[0] = begins[whole]
        column_of[0] = column_of[whole]
        waiting = 1


@helper
def _gather(data, starts, columns, text, pos, forced, waiting, begins, keys, column_of, classes):  # type: ignore[no-untyped-def]
    """Append the starts of words until the batch is full or the texts end; at the end, append that of the last word."""
    most = len(keys)
    while text < len(starts) - 1 and waiting <= most - MAX_WORDS_PER_STEP:
        stop = np.int64(starts[text + 1])
        before = waiting
        if pos < 0:
            pos = np.int64(starts[text])
            if pos < stop:
                begins[waiting] = pos
                waiting += 1
                forced = after_contraction(data, pos, stop)
        pos, forced, waiting = next_words(data, pos, stop, forced, begins, waiting, most, classes)
        for word in range(before, waiting):
            column_of[word] = columns[text]
        if pos >= stop:
            text += 1
            pos = np.int64(-1)
    if text == len(starts) - 1:
        begins[waiting] = starts[text]
    return text, pos, forced, waiting


@helper
def _look_up(data, begins, keys, column_of, whole, slots, slot_of, ends, known, words, word_bytes):  # type: ignore[no-untyped-def]
    """Count the gathered words; return the number of known words, and their bytes."""
    mask = np.uint64(len(slots) - 1)
    for word in range(whole):
        key = keys[word]
        slot = _slot_of(key, mask)
        column = _COUNTS + np.int64(column_of[word])
        first = begins[word]
        length = begins[word + 1] - first
        while True:
            occupant = slots[slot, _KEY]
            if occupant == key:
                if key < _HASHED or _is_word(data, first, length, known, ends, np.int64(slots[slot, _NUMBER])):
                    slots[slot, column] += _ONE
                    break
            elif occupant == _ZERO:
                for at in range(length):
                    known[word_bytes + at] = byte_at(data, first + at)
                word_bytes += length
                ends[words] = word_bytes
                slot_of[words] = slot
                slots[slot, _KEY] = key
                slots[slot, _NUMBER] = words
                slots[slot, column] = _ONE
                words += 1
                break
            slot = (slot + _ONE) & mask
    return words, word_bytes


@helper
def _is_word(data, at, length, known, ends, number):  # type: ignore[no-untyped-def]
    first = ends[number - 1] if number else np.int64(0)
    if ends[number] - first != length:
        return False
    done = np.int64(0)
    while done < length:
        if _eight(data, at + done, length - done) != _eight(known, first + done, length - done):
            return False
        done += 8
    return True


@kernel
def _rehash(slots, larger, slot_of):  # type: ignore[no-untyped-def]
    """Put the words of a table into a larger one."""
    mask = np.uint64(len(larger) - 1)
    for old in range(len(slots)):
        key = slots[old, _KEY]
        if key != _ZERO:
            slot = _slot_of(key, mask)
            while larger[slot, _KEY] != _ZERO:
                slot = (slot + _ONE) & mask
            for column in range(slots.shape[1]):
                larger[slot, column] = slots[old, column]
            slot_of[slots[old, _NUMBER]] = slot


@helper
def _slot_of(key, mask):  # type: ignore[no-untyped-def]
    spread = key * _SPREAD
    return (spread ^ spread >> _HALF) & mask


@helper
def _key_of(data, at, length):  # type: ignore[no-untyped-def]
    """Return a short word and its length, or a hash with the highest bit set; never 0."""
    if length <= _SHORT:
        return _eight(data, at, length) | np.uint64(length) << _LENGTH_SHIFT
    hashed = np.uint64(length) * _SPREAD
    while length > 0:
        hashed = (hashed ^ _eight(data, at, length)) * _STIR
        hashed ^= hashed >> _HALF
        at += 8
        length -= 8
    return hashed | _HASHED


@helper
def _eight(data, at, length):  # type: ignore[no-untyped-def]
    """Return at most 8 bytes as a number, zeros after the first `length`."""
    if at + 8 <= len(data):
        word = word_at(data, at)
        return word if length >= 8 else word & ((_ONE << np.uint64(8 * length)) - _ONE)
    word = _ZERO
    for place in range(min(length, 8)):
        word |= np.uint64(byte_at(data, at + place)) << np.uint64(8 * place)
    return word
