"""Learns the merges of a byte pair encoding from word counts: exact, incremental, with 64-bit counts.

The symbols of a word are adjacent in memory, so a merge rewrites a few neighboring numbers. Pairs that may be merged
soon are tracked: each has a count and a list of the words that contain it. Merging a pair rewrites the words of its
list, decrements the counts of the neighboring pairs that disappear, and tracks the pairs that the new symbol forms. All
words that will ever contain a pair are known in the step that creates it, since later symbols are newer; so a list is
written once. A word that has lost the pair since is skipped.

After the step that created a pair its count only falls. So pairs below a limit need not be tracked until the greatest
count falls below the limit; then all pairs are counted again with a lower limit. That keeps the lists of rare pairs,
which are the majority, out of memory, and the frequently used data in the processor's cache.

The pair with the greatest count is merged first; of equal counts the one with the lowest left, then right id, as in the
`tokenizers` library. No token is created twice: equal bytes between symbol borders have been merged in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.kernels.hash_table import Keys, Table, find_or_add, new_table, slot_of, table_of

Integers = npt.NDArray[np.int64]

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_MAX_WORDS = 2**31 - 1
_INITIAL_PAIRS = _MIN_TRACKED = 1 << 12
# Ratio of one limit to the next. For each limit all words are read once more.
_LIMIT_RATIO = 64
_PROGRESS_INTERVAL_S = 0.2
# Indexes into `done` and `sizes`.
_MERGES_DONE, _STOP = 0, 1
_PAIRS, _LISTED, _IN_HEAP = 0, 1, 2


class Merges(NamedTuple):
    """Merge i creates the symbol `first_id + i` from `left[i]` and `right[i]`, which occurred `counts[i]` times."""

    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    counts: Integers


class _Words(NamedTuple):
    """The symbols of words: word i is `ids[starts[i]:starts[i] + lengths[i]]` and occurs `counts[i]` times."""

    ids: npt.NDArray[Any]
    starts: Integers
    lengths: npt.NDArray[np.int32]
    counts: Integers


class _PairCounts(NamedTuple):
    """Distinct pairs: their keys, how often each occurs, and at how many positions of distinct words."""

    keys: Keys
    counts: Integers
    positions: Integers


class _Pairs(NamedTuple):
    """The tracked pairs by number: key, count, begin and end of the list of its words; and a hash table by key.

    `heap_counts` and `heap_pairs` are a heap of pairs, with the count at the time of their last move: the greatest
    count first, ties by the lowest key.
    """

    keys: Keys
    counts: Integers
    begins: Integers
    ends: Integers
    heap_counts: Integers
    heap_pairs: npt.NDArray[np.int32]
    table: Table


class _Neighbors(NamedTuple):
    """Neighbors of the new symbol of a step, by slot: `id` to its right, `len(counts) // 2 + id` to its left.

    `counts` and `words` are the number of occurrences and of words with them; `slots` lists the slots in use; `pairs`
    has the number of the tracked pair, or -1. `occurrences` and `occurrence_words` list all of them in order of words.
    """

    counts: Integers
    words: Integers
    slots: npt.NDArray[np.int32]
    pairs: npt.NDArray[np.int32]
    occurrences: npt.NDArray[np.int32]
    occurrence_words: npt.NDArray[np.int32]


def learn_merges(
    symbols: npt.NDArray[Any],
    starts: Integers,
    counts: Integers,
    *,
    first_id: int,
    most: int,
    min_count: int,
    on_progress: Callable[[int], None] | None = None,
) -> Merges:
    """Return at most `most` merges of words `symbols[starts[i]:starts[i + 1]]` that occur `counts[i]` times.

    Symbols are integers below `first_id`. Stops when no pair occurs `min_count` times, which is at least 1.
    `on_progress` gets the number of new merges a few times per second. Raises ValueError for arrays of inconsistent
    lengths.
    """
    ends = (int(starts[0]), int(starts[-1])) if len(starts) else (-1, -1)
    if len(starts) != len(counts) + 1 or ends != (0, len(symbols)) or bool((np.diff(starts) < 0).any()):
        raise ValueError(f"`starts` does not divide the {len(symbols):,} symbols into {len(counts):,} words")
    if len(counts) > _MAX_WORDS:
        raise ValueError(f"{len(counts):,} words are more than the limit of {_MAX_WORDS:,}")
    most = min(most, len(symbols))  # each merge shortens the words by at least one symbol
    # Views, so that nothing but the compacted words is kept in memory.
    words = _Words(symbols, starts[:-1], np.diff(starts).astype(np.int32), counts)
    merges = Merges(np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int64))
    done = np.zeros(2, np.int64)
    with ThreadPoolExecutor(1) as thread:
        learning = thread.submit(_learn, words, merges, first_id, max(1, min_count), done)
        try:
            reported = 0
            while wait([learning], _PROGRESS_INTERVAL_S).not_done or reported < done[_MERGES_DONE]:
                merged = int(done[_MERGES_DONE])
                if on_progress is not None:
                    on_progress(merged - reported)
                reported = merged
        finally:
            done[_STOP] = 1  # after an interrupt
        learning.result()
    return Merges._make(column[: done[_MERGES_DONE]] for column in merges)


def _learn(words: _Words, merges: Merges, first_id: int, min_count: int, done: Integers) -> None:
    """Fill `merges`; `done` contains the number of merges so far, and whether to stop."""
    slots = 2 * (first_id + len(merges.left))
    kind = np.uint16 if slots // 2 <= np.iinfo(np.uint16).max + 1 else np.int32
    # Upper bounds of the sizes; the system allocates the pages when they are first written.
    symbols = len(words.ids)
    neighbors = _Neighbors(
        np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.empty(slots, np.int32), np.empty(slots, np.int32),
        np.empty(symbols, np.int32), np.empty(symbols, np.int32),
    )  # fmt: skip
    while done[_MERGES_DONE] < len(merges.left) and not done[_STOP]:
        words = _compact_words(words, kind)
        keys, counts, positions = _count_pairs(words)
        greatest = int(counts.max(initial=0))
        if greatest < min_count:
            break
        limit = max(min_count, greatest // _LIMIT_RATIO)
        chosen = counts >= limit
        pairs = _tracked(keys[chosen], counts[chosen], positions[chosen])
        tracked, listed = int(chosen.sum()), int(positions[chosen].sum())
        # A merge adds at most two list entries for each symbol that it removes.
        pool = np.empty(listed + 2 * len(words.ids), np.int32)
        _list_words(words, pairs, pool)
        sizes = np.array([tracked, listed, tracked], np.int64)
        while _merge(limit, words, pairs, pool, neighbors, merges, first_id, sizes, done):
            pairs = _with_more_room(pairs, int(sizes[_PAIRS]))
        del pairs, pool  # before the words are copied


def _compact_words(words: _Words, kind: npt.DTypeLike) -> _Words:
    """Return a copy of the words that still have a pair, without the gaps that merges left."""
    kept = words.lengths > 1
    starts, lengths = words.starts[kept], words.lengths[kept]
    is_kept = np.zeros(len(words.ids) + 1, np.int8)
    is_kept[starts] = 1
    is_kept[starts + lengths] -= 1
    np.cumsum(is_kept, dtype=np.int8, out=is_kept)
    ids = words.ids[is_kept[:-1].view(np.bool_)].astype(kind, copy=False)
    del is_kept  # as large as all symbols
    np.cumsum(lengths, out=starts)
    starts -= lengths
    return _Words(ids, starts, lengths, words.counts[kept])


def _tracked(keys: Keys, counts: Integers, positions: Integers) -> _Pairs:
    """Return pairs with empty lists of words; each list has room for all positions of its pair."""
    begins = np.cumsum(positions) - positions
    order = np.lexsort((keys, -counts)).astype(np.int32)  # a sorted array is a heap
    room = max(_MIN_TRACKED, len(keys) + len(keys) // 2)
    columns = (keys, counts, begins, begins, counts[order], order)
    return _Pairs._make([*(_enlarged(column, room) for column in columns), table_of(keys, room)])


def _with_more_room(pairs: _Pairs, size: int) -> _Pairs:
    room = 2 * len(pairs.keys)
    columns: tuple[npt.NDArray[Any], ...] = pairs[:-1]
    return _Pairs._make([*(_enlarged(column, room) for column in columns), table_of(pairs.keys[:size], room)])


def _count_pairs(words: _Words) -> _PairCounts:
    """Count all adjacent pairs of symbols."""
    word, size = 0, 0
    pairs = _PairCounts._make(np.empty(_INITIAL_PAIRS, kind) for kind in (np.uint64, np.int64, np.int64))
    table = new_table(_INITIAL_PAIRS)
    while True:
        word, size = _count(words, word, pairs, size, table)
        if word == len(words.starts):
            return _PairCounts._make(column[:size] for column in pairs)
        room = max(4 * len(pairs.keys), size + int(words.lengths[word]))
        pairs = _PairCounts._make(_enlarged(column, room) for column in pairs)
        table = table_of(pairs.keys[:size], room)


def _enlarged(array: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """Return a copy of an array with room for `room` entries."""
    larger = np.empty(room, array.dtype)
    larger[: len(array)] = array
    return larger


@helper
def _key_of(left, right):  # type: ignore[no-untyped-def]
    """Return a pair as one number: the left id in the high bits."""
    return (np.uint64(left) << _HALF) | np.uint64(right)


@kernel
def _count(words, word, pairs, size, table):  # type: ignore[no-untyped-def]
    """Count from a word on; return the next word, whose pairs there may be no room for, and the number of pairs."""
    ids, keys = words.ids, pairs.keys
    while word < len(words.starts) and size + words.lengths[word] <= len(keys):
        start, weight = words.starts[word], words.counts[word]
        for at in range(start, start + words.lengths[word] - 1):
            key = _key_of(ids[at], ids[at + 1])
            number = find_or_add(table, key, size)
            if number == size:
                keys[size] = key
                pairs.counts[size] = 0
                pairs.positions[size] = 0
                size += 1
            pairs.counts[number] += weight
            pairs.positions[number] += 1
        word += 1
    return word, size


@kernel
def _list_words(words, pairs, pool):  # type: ignore[no-untyped-def]
    """Fill the lists of words of the tracked pairs."""
    table = pairs.table
    for word in range(len(words.starts)):
        start = words.starts[word]
        for at in range(start, start + words.lengths[word] - 1):
            key = _key_of(words.ids[at], words.ids[at + 1])
            slot = slot_of(table.keys, key)
            if table.keys[slot] == key:
                _list_word(pool, pairs, np.int64(table.numbers[slot]), word)


@helper
def _list_word(pool, pairs, pair, word):  # type: ignore[no-untyped-def]
    """Append a word to the list of a pair, unless it is its last entry."""
    end = pairs.ends[pair]
    if end == pairs.begins[pair] or pool[end - 1] != word:
        pool[end] = word
        pairs.ends[pair] = end + 1


@kernel
def _merge(limit, words, pairs, pool, neighbors, merges, first_id, sizes, done):  # type: ignore[no-untyped-def]
    """Merge while a tracked pair reaches the limit; return whether the pairs need more room to continue."""
    counts, heap_counts, heap_pairs = pairs.counts, pairs.heap_counts, pairs.heap_pairs
    while done[_MERGES_DONE] < len(merges.left) and done[_STOP] == 0 and sizes[_IN_HEAP] > 0:
        pair = heap_pairs[0]
        count = counts[pair]
        is_current = heap_counts[0] == count
        # The neighbors of the new symbol occur at most twice as often as the pair, and tracked ones `limit` times each.
        if is_current and sizes[_PAIRS] + 2 * count // limit > len(counts):
            return True
        last = sizes[_IN_HEAP] - 1
        if is_current or count < limit:
            sizes[_IN_HEAP] = last
            _sink(pairs, last, heap_counts[last], np.int64(heap_pairs[last]))
        else:  # counts only fall, so move it down
            _sink(pairs, last + 1, count, np.int64(pair))
        if not is_current:
            continue
        step = done[_MERGES_DONE]
        merges.left[step] = pairs.keys[pair] >> _HALF
        merges.right[step] = pairs.keys[pair] & _LOW
        merges.counts[step] = count
        new = first_id + step
        slots, occurrences = _rewrite_words(words, pairs, pair, pool, neighbors, new)
        counts[pair] = 0
        _track_neighbors(pairs, pool, neighbors, slots, occurrences, new, limit, sizes)
        done[_MERGES_DONE] = step + 1
    return False


@helper
def _is_above(pairs, count, pair, place):  # type: ignore[no-untyped-def]
    """Return whether a pair with a count belongs above an entry of the heap."""
    if count != pairs.heap_counts[place]:
        return count > pairs.heap_counts[place]
    return pairs.keys[pair] < pairs.keys[pairs.heap_pairs[place]]


@helper
def _sink(pairs, size, count, pair):  # type: ignore[no-untyped-def]
    """Replace the top of a heap of `size` entries, and sift the new entry down."""
    counts, numbers = pairs.heap_counts, pairs.heap_pairs
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_above(pairs, counts[child + 1], np.int64(numbers[child + 1]), child):
            child += 1
        if _is_above(pairs, count, pair, child):
            break
        counts[place] = counts[child]
        numbers[place] = numbers[child]
        place = child
    counts[place] = count
    numbers[place] = pair


@helper
def _push(pairs, size, pair):  # type: ignore[no-untyped-def]
    """Add a pair to a heap of `size` entries."""
    counts, numbers = pairs.heap_counts, pairs.heap_pairs
    place, count = size, pairs.counts[pair]
    while place > 0:
        parent = (place - 1) >> 1
        if not _is_above(pairs, count, pair, parent):
            break
        counts[place] = counts[parent]
        numbers[place] = numbers[parent]
        place = parent
    counts[place] = count
    numbers[place] = pair


@helper
def _rewrite_words(words, pairs, pair, pool, neighbors, new):  # type: ignore[no-untyped-def]
    """Merge a pair in the words of its list; return the number of slots and of occurrences of neighbors."""
    left, right = np.int64(pairs.keys[pair] >> _HALF), np.int64(pairs.keys[pair] & _LOW)
    ids = words.ids
    slots = occurrences = np.int64(0)  # a literal 0 would compile `_rewrite` twice
    for entry in range(pairs.begins[pair], pairs.ends[pair]):
        word = pool[entry]
        at, end = words.starts[word], words.starts[word] + words.lengths[word]
        while at + 1 < end and not (ids[at] == left and ids[at + 1] == right):
            at += 1
        if at + 1 < end:
            slots, occurrences = _rewrite(words, pairs, word, at, left, right, new, neighbors, slots, occurrences)
    return slots, occurrences


@helper
def _rewrite(words, pairs, word, at, left, right, new, neighbors, slots, occurrences):  # type: ignore[no-untyped-def]
    """Merge the pair in one word from its first occurrence on; decrement pairs that disappear, record new neighbors."""
    ids, offset = words.ids, len(neighbors.counts) >> 1
    start, end, weight = words.starts[word], words.starts[word] + words.lengths[word], words.counts[word]
    to = at
    after_new = False
    while at < end:
        is_pair = at + 1 < end and ids[at] == left and ids[at + 1] == right
        # Of two adjacent occurrences, the pair between them is the right symbol with the left one.
        if is_pair and to > start:
            before = right if after_new else np.int64(ids[to - 1])
            lost, slot = _key_of(before, left), new if after_new else offset + before
        elif after_new and not is_pair:
            lost, slot = _key_of(right, ids[at]), np.int64(ids[at])
        else:
            lost, slot = np.uint64(0), np.int64(-1)
        if slot >= 0:
            place = slot_of(pairs.table.keys, lost)
            if pairs.table.keys[place] == lost:
                pairs.counts[pairs.table.numbers[place]] -= weight
            if neighbors.words[slot] == 0:
                neighbors.slots[slots] = slot
                slots += 1
            neighbors.counts[slot] += weight
            neighbors.words[slot] += 1
            neighbors.occurrences[occurrences] = slot
            neighbors.occurrence_words[occurrences] = word
            occurrences += 1
        ids[to] = new if is_pair else ids[at]
        to += 1
        at += 2 if is_pair else 1
        after_new = is_pair
    words.lengths[word] = to - start
    return slots, occurrences


@helper
def _track_neighbors(pairs, pool, neighbors, slots, occurrences, new, limit, sizes):  # type: ignore[no-untyped-def]
    """Track the pairs of a new symbol that reach the limit, and clear its neighbors."""
    offset, table = len(neighbors.counts) >> 1, pairs.table
    for index in range(slots):
        slot = neighbors.slots[index]
        neighbors.pairs[slot] = -1
        if neighbors.counts[slot] >= limit:
            pair, begin = sizes[_PAIRS], sizes[_LISTED]
            key = _key_of(slot - offset, new) if slot >= offset else _key_of(new, slot)
            find_or_add(table, key, pair)
            pairs.keys[pair] = key
            pairs.counts[pair] = neighbors.counts[slot]
            pairs.begins[pair] = begin
            pairs.ends[pair] = begin
            neighbors.pairs[slot] = pair
            _push(pairs, sizes[_IN_HEAP], pair)
            sizes[_PAIRS] = pair + 1
            sizes[_LISTED] = begin + neighbors.words[slot]
            sizes[_IN_HEAP] += 1
        neighbors.counts[slot] = 0
        neighbors.words[slot] = 0
    for index in range(occurrences):
        pair = neighbors.pairs[neighbors.occurrences[index]]
        if pair >= 0:
            _list_word(pool, pairs, np.int64(pair), np.int64(neighbors.occurrence_words[index]))
