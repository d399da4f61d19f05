"""Learns the merges of a byte pair encoding from counts of words: exact, incremental, counted in 64 bits.

Each adjacent pair of symbols is an occurrence, kept at the position of its left symbol; the occurrences of one pair
form a doubly linked list through the positions. A merge walks the list of its pair and relinks what stands beside each
occurrence, so a symbol is touched only as often as it is merged. The next pair is the top of a heap, whose entries may
say too much but never too little, since a pair's count only falls once the step that made it is over: a top that is
out of date is put back with what is true.

The greatest count goes first; of equal counts the pair with the lowest left, then right id, as the `tokenizers` library
has it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.compiled import kernel

_NONE = -1
_FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FIRST_ROOM = 1 << 16
_MOST_SYMBOLS = 2**31 - 1


class Merges(NamedTuple):
    """Merge i makes the symbol `first_id + i` of `left[i]` and `right[i]`, which stood together `counts[i]` times."""

    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]


class _Symbols(NamedTuple):
    """The symbols of all words, one after the other: each with its neighbours, its word, and its place in a list.

    `pair` is the pair that begins here; `after` and `before` are its occurrences beside this one in the list.
    """

    ids: npt.NDArray[np.int32]
    next: npt.NDArray[np.int32]
    previous: npt.NDArray[np.int32]
    word: npt.NDArray[np.int32]
    pair: npt.NDArray[np.int32]
    after: npt.NDArray[np.int32]
    before: npt.NDArray[np.int32]


class _Pairs(NamedTuple):
    """All pairs that there ever were, by number: their key (both ids), count, first occurrence; and a table by key."""

    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int32]
    table: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int32]


class _Heap(NamedTuple):
    counts: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int32]


def learn_merges(
    symbols: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    *,
    first_id: int,
    most: int,
    min_count: int,
) -> Merges:
    """Return at most `most` merges of words, whose symbols are `symbols[starts[i]:starts[i + 1]]`, `counts[i]` times.

    Ends where no pair stands together `min_count` times, which is at least 1. Raises ValueError where the arrays do not
    fit together, or are longer than positions of 32 bits reach.
    """
    ends = (int(starts[0]), int(starts[-1])) if len(starts) else (-1, -1)
    if len(starts) != len(counts) + 1 or ends != (0, len(symbols)) or bool((np.diff(starts) < 0).any()):
        raise ValueError("the starts of the words do not cut the symbols into as many words as there are counts")
    if len(symbols) > _MOST_SYMBOLS:
        raise ValueError(f"{len(symbols):,} symbols are more than {_MOST_SYMBOLS:,}")
    return Merges(*_learn(symbols, starts, counts, first_id, most, max(1, min_count)))


@kernel
def _learn(ids, starts, word_counts, first_id, most, least):  # type: ignore[no-untyped-def]
    symbols = _laid_out(ids, starts)
    pairs, size = _counted(symbols, word_counts)
    heap = _Heap(np.empty(max(2 * size, _FIRST_ROOM), np.int64), np.empty(max(2 * size, _FIRST_ROOM), np.int32))
    in_heap = 0
    for pair in range(size):
        if pairs.counts[pair] >= least:
            _push(heap, pairs.keys, in_heap, pairs.counts[pair], pair)
            in_heap += 1
    left, right, counts = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int64)
    found = np.empty(1024, np.int32)
    done = 0
    while done < most and in_heap > 0:
        pair = heap.pairs[0]
        count = pairs.counts[pair]
        if heap.counts[0] != count and count >= least:
            _sink(heap, pairs.keys, in_heap, count, pair)
            continue
        is_true = heap.counts[0] == count
        in_heap -= 1
        if in_heap > 0:
            _sink(heap, pairs.keys, in_heap, heap.counts[in_heap], heap.pairs[in_heap])
        if not is_true:
            continue
        left[done] = np.int32(pairs.keys[pair] >> _HALF)
        right[done] = np.int32(pairs.keys[pair] & _LOW)
        counts[done] = count
        found, number = _taken(symbols, pairs, pair, found)
        if left[done] == right[done]:
            found[:number].sort()  # in a run of one symbol the pairs overlap, and the first goes first
        old = size
        for at in found[:number]:
            pairs, size = _merged(symbols, pairs, size, at, left[done], right[done], first_id + done, word_counts)
        for new in range(old, size):
            if pairs.counts[new] >= least:
                if in_heap == len(heap.counts):
                    heap = _Heap(_grown(heap.counts), _grown(heap.pairs))
                _push(heap, pairs.keys, in_heap, pairs.counts[new], new)
                in_heap += 1
        done += 1
    return left[:done], right[:done], counts[:done]


@kernel
def _laid_out(ids, starts):  # type: ignore[no-untyped-def]
    size = len(ids)
    following, previous, word = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    for number in range(len(starts) - 1):
        first, end = starts[number], starts[number + 1]
        for at in range(first, end):
            following[at] = at + 1 if at + 1 < end else _NONE
            previous[at] = at - 1 if at > first else _NONE
            word[at] = number
    pair, after = np.full(size, _NONE, np.int32), np.full(size, _NONE, np.int32)
    return _Symbols(ids.copy(), following, previous, word, pair, after, np.full(size, _NONE, np.int32))


@kernel
def _counted(symbols, word_counts):  # type: ignore[no-untyped-def]
    """Return the pairs of all words, and how many there are."""
    pairs = _Pairs(
        np.empty(_FIRST_ROOM, np.uint64),
        np.empty(_FIRST_ROOM, np.int64),
        np.empty(_FIRST_ROOM, np.int32),
        np.full(2 * _FIRST_ROOM, _FREE, np.uint64),
        np.empty(2 * _FIRST_ROOM, np.int32),
    )
    size = 0
    for at in range(len(symbols.ids)):
        if symbols.next[at] != _NONE:
            pairs, size = _link(symbols, pairs, size, at, word_counts[symbols.word[at]])
    return pairs, size


@kernel
def _taken(symbols, pairs, pair, found):  # type: ignore[no-untyped-def]
    """Take all occurrences off the list of a pair; return them, in an array that may have grown, and their number."""
    number = 0
    at = pairs.heads[pair]
    while at != _NONE:
        if number == len(found):
            found = _grown(found)
        found[number] = at
        number += 1
        symbols.pair[at] = _NONE
        at = symbols.after[at]
    pairs.heads[pair] = _NONE
    pairs.counts[pair] = 0
    return found, number


@kernel
def _merged(symbols, pairs, size, at, left, right, new, word_counts):  # type: ignore[no-untyped-def]
    """Merge the symbol at a position with the next; return the pairs and their number."""
    other = symbols.next[at]
    if symbols.ids[at] != left or other == _NONE or symbols.ids[other] != right:
        return pairs, size  # a merge before, in the same run, took one of them
    weight = word_counts[symbols.word[at]]
    before, after = symbols.previous[at], symbols.next[other]
    if before != _NONE:
        _unlink(symbols, pairs, before, weight)
    _unlink(symbols, pairs, other, weight)
    symbols.ids[at] = new
    symbols.ids[other] = _NONE
    symbols.next[at] = after
    if after != _NONE:
        symbols.previous[after] = at
        pairs, size = _link(symbols, pairs, size, at, weight)
    if before != _NONE:
        pairs, size = _link(symbols, pairs, size, before, weight)
    return pairs, size


@kernel
def _link(symbols, pairs, size, at, weight):  # type: ignore[no-untyped-def]
    """Put the pair that begins at a position on its list; return the pairs, which may have grown, and their number."""
    key = (np.uint64(symbols.ids[at]) << _HALF) | np.uint64(symbols.ids[symbols.next[at]])
    slot = _slot(pairs.table, key)
    if pairs.table[slot] == _FREE:
        if size == len(pairs.keys):
            pairs = _with_more_room(pairs)
            slot = _slot(pairs.table, key)
        pairs.table[slot] = key
        pairs.numbers[slot] = size
        pairs.keys[size] = key
        pairs.counts[size] = 0
        pairs.heads[size] = _NONE
        size += 1
    pair = pairs.numbers[slot]
    pairs.counts[pair] += weight
    head = pairs.heads[pair]
    symbols.pair[at] = pair
    symbols.before[at] = _NONE
    symbols.after[at] = head
    if head != _NONE:
        symbols.before[head] = at
    pairs.heads[pair] = at
    return pairs, size


@kernel
def _unlink(symbols, pairs, at, weight):  # type: ignore[no-untyped-def]
    """Take the pair that begins at a position, if one is listed there, off its list."""
    pair = symbols.pair[at]
    if pair == _NONE:
        return
    before, after = symbols.before[at], symbols.after[at]
    if before == _NONE:
        pairs.heads[pair] = after
    else:
        symbols.after[before] = after
    if after != _NONE:
        symbols.before[after] = before
    symbols.pair[at] = _NONE
    pairs.counts[pair] -= weight


@kernel
def _slot(table, key):  # type: ignore[no-untyped-def]
    """Return where a key is in the table, or the free place where it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = ((key * _SPREAD) >> np.uint64(20)) & mask
    while table[slot] != key and table[slot] != _FREE:
        slot = (slot + _ONE) & mask
    return slot


@kernel
def _with_more_room(pairs):  # type: ignore[no-untyped-def]
    table = np.full(2 * len(pairs.table), _FREE, np.uint64)
    numbers = np.empty(2 * len(pairs.table), np.int32)
    for number in range(len(pairs.keys)):
        slot = _slot(table, pairs.keys[number])
        table[slot] = pairs.keys[number]
        numbers[slot] = number
    return _Pairs(_grown(pairs.keys), _grown(pairs.counts), _grown(pairs.heads), table, numbers)


@kernel
def _grown(array):  # type: ignore[no-untyped-def]
    grown = np.empty(2 * len(array), array.dtype)
    grown[: len(array)] = array
    return grown


@kernel
def _is_above(heap, keys, count, pair, place):  # type: ignore[no-untyped-def]
    """Whether a pair with a count belongs above what stands at a place."""
    if count != heap.counts[place]:
        return count > heap.counts[place]
    return keys[pair] < keys[heap.pairs[place]]


@kernel
def _push(heap, keys, size, count, pair):  # type: ignore[no-untyped-def]
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if not _is_above(heap, keys, count, pair, parent):
            break
        heap.counts[place] = heap.counts[parent]
        heap.pairs[place] = heap.pairs[parent]
        place = parent
    heap.counts[place] = count
    heap.pairs[place] = pair


@kernel
def _sink(heap, keys, size, count, pair):  # type: ignore[no-untyped-def]
    """Put a pair in the place of the top, and then where it belongs."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        other = child + 1
        if other < size and _is_above(heap, keys, heap.counts[other], heap.pairs[other], child):
            child = other
        if _is_above(heap, keys, count, pair, child):
            break
        heap.counts[place] = heap.counts[child]
        heap.pairs[place] = heap.pairs[child]
        place = child
    heap.counts[place] = count
    heap.pairs[place] = pair
