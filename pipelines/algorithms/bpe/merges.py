"""Learns the merges of a byte pair encoding from counts of words: exact, incremental, counted in 64 bits.

The symbols of a word stand together, so that a merge rewrites a few neighbouring numbers. A pair that may be merged
soon is tracked: its count, and a list of the words that hold it. When a pair is merged, the words of its list are
rewritten, what stood beside it is counted down, and the pairs of the new symbol are tracked in their turn. All words
that will ever hold a pair are known at the step that makes it, since every later symbol is a newer one; so a list is
only written once. A word that has lost the pair meanwhile is passed over.

A pair's count only falls once the step that made it is over. So pairs below a limit need not be tracked as long as the
greatest count is not below it; then the words are counted anew with a lower limit. That keeps the lists of rare pairs,
which are most, out of memory, and what is looked up often in the cache.

The greatest count goes first; of equal counts the pair with the lowest left, then right id, as the `tokenizers` library
has it. No token is made twice: two places that hold the same bytes between symbol borders have been merged alike.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.pair_heap import PairHeap, push, sink
from pipelines.algorithms.bpe.pair_table import FREE, HALF, LOW, at_least, grown, key_of, slot_of, table_of
from pipelines.algorithms.kernels.compilation import kernel

_FIRST_ROOM = 1 << 12
_MOST_WORDS = 2**31 - 1
# From one limit to the next: at each the words are read once more, and the rarer pairs are let in.
_STEP_OF_LIMITS = 64
_TELL_EVERY_S = 0.2


class Merges(NamedTuple):
    """Merge i makes the symbol `first_id + i` of `left[i]` and `right[i]`, which stood together `counts[i]` times."""

    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]


class _Words(NamedTuple):
    """The symbols of the words that still have a pair: word i is `ids[starts[i]:starts[i] + lengths[i]]`."""

    ids: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]


class _Pairs(NamedTuple):
    """The tracked pairs by number: both ids, count, where the list of their words begins and ends; a table by ids."""

    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    table: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.int32]


class _Beside(NamedTuple):
    """What came to stand beside the new symbol of one step, by place: id for its right, `room + id` for its left.

    `counts` and `words` are how often and in how many words; `places` lists those that are not zero. `lists` holds the
    number of the tracked pair for each place; `at` and `word` are all occurrences, in order of words.
    """

    counts: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]
    places: npt.NDArray[np.int32]
    lists: npt.NDArray[np.int32]
    at: npt.NDArray[np.int32]
    word: npt.NDArray[np.int32]


def learn_merges(
    symbols: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    *,
    first_id: int,
    most: int,
    min_count: int,
    on_progress: Callable[[int], None] | None = None,
) -> Merges:
    """Return at most `most` merges of words, whose symbols are `symbols[starts[i]:starts[i + 1]]`, `counts[i]` times.

    Symbols are whole numbers below `first_id`. Ends where no pair stands together `min_count` times, which is at least
    1. `on_progress` is told the number of new merges a few times a second. Raises ValueError where the arrays do not
    fit together.
    """
    ends = (int(starts[0]), int(starts[-1])) if len(starts) else (-1, -1)
    if len(starts) != len(counts) + 1 or ends != (0, len(symbols)) or bool((np.diff(starts) < 0).any()):
        raise ValueError("the starts of the words do not cut the symbols into as many words as there are counts")
    if len(counts) > _MOST_WORDS:
        raise ValueError(f"{len(counts):,} words are more than {_MOST_WORDS:,}")
    most = min(most, len(symbols))  # each merge makes the words shorter by one symbol at least
    narrow = first_id + most <= np.iinfo(np.uint16).max + 1
    words = _Words(
        symbols.astype(np.uint16 if narrow else np.int32), starts[:-1].copy(), np.diff(starts).astype(np.int32),
        counts.astype(np.int64),
    )  # fmt: skip
    merges = Merges(np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int64))
    done = np.zeros(2, np.int64)
    if on_progress is None:
        _learn(words, merges, first_id, max(1, min_count), done)
    else:
        _learn_watched(words, merges, first_id, max(1, min_count), done, on_progress)
    return Merges(merges.left[: done[0]], merges.right[: done[0]], merges.counts[: done[0]])


def _learn_watched(
    words: _Words, merges: Merges, first_id: int, least: int, done: npt.NDArray[np.int64], tell: Callable[[int], None]
) -> None:
    """Learn in a thread, which needs no interpreter, and tell how far it is; end it when this one is interrupted."""
    with ThreadPoolExecutor(1) as thread:
        learning = thread.submit(_learn, words, merges, first_id, least, done)
        told = 0
        try:
            while wait([learning], _TELL_EVERY_S).not_done:
                now = int(done[0])
                tell(now - told)
                told = now
        finally:
            done[1] = 1
        learning.result()
        tell(int(done[0]) - told)


@kernel
def _learn(words, merges, first_id, least, done):  # type: ignore[no-untyped-def]
    """Fill `merges`; `done` is their number so far, and whether to stop."""
    beside = _nothing_beside(first_id + len(merges.left))
    while done[0] < len(merges.left) and done[1] == 0:
        words = _without_single_symbols(words)
        keys, counts, places = _counted(words)
        greatest = 0
        for number in range(len(keys)):
            greatest = max(greatest, counts[number])
        if greatest < least:
            break
        limit = max(least, greatest // _STEP_OF_LIMITS)
        pairs, size, pool = _tracked(words, keys, counts, places, limit)
        beside = _merge_down_to(limit, words, pairs, size, pool, beside, merges, first_id, done)


@kernel
def _nothing_beside(room):  # type: ignore[no-untyped-def]
    return _Beside(
        np.zeros(2 * room, np.int64),
        np.zeros(2 * room, np.int64),
        np.empty(2 * room, np.int32),
        np.empty(2 * room, np.int32),
        np.empty(_FIRST_ROOM, np.int32),
        np.empty(_FIRST_ROOM, np.int32),
    )


@kernel
def _without_single_symbols(words):  # type: ignore[no-untyped-def]
    """Move the words that still have a pair together, so that they are read in one go."""
    end = 0
    kept = 0
    for word in range(len(words.starts)):
        length = words.lengths[word]
        if length > 1:
            start = words.starts[word]
            for offset in range(length):
                words.ids[end + offset] = words.ids[start + offset]
            words.starts[kept] = end
            words.lengths[kept] = length
            words.counts[kept] = words.counts[word]
            end += length
            kept += 1
    return _Words(words.ids[:end], words.starts[:kept], words.lengths[:kept], words.counts[:kept])


@kernel
def _counted(words):  # type: ignore[no-untyped-def]
    """Return all pairs of the words: their keys, how often they stand there, and at how many places."""
    keys, counts = np.empty(_FIRST_ROOM, np.uint64), np.empty(_FIRST_ROOM, np.int64)
    places = np.empty(_FIRST_ROOM, np.int64)
    table, numbers = table_of(keys[:0], 2 * _FIRST_ROOM)
    size = 0
    for word in range(len(words.starts)):
        start = words.starts[word]
        for at in range(start, start + words.lengths[word] - 1):
            key = key_of(words.ids[at], words.ids[at + 1])
            slot = slot_of(table, key)
            if table[slot] == FREE:
                if size == len(keys):
                    keys, counts, places = grown(keys), grown(counts), grown(places)
                    table, numbers = table_of(keys[:size], 4 * size)
                    slot = slot_of(table, key)
                table[slot] = key
                numbers[slot] = size
                keys[size] = key
                counts[size] = 0
                places[size] = 0
                size += 1
            number = numbers[slot]
            counts[number] += words.counts[word]
            places[number] += 1
    return keys[:size], counts[:size], places[:size]


@kernel
def _tracked(words, keys, counts, places, limit):  # type: ignore[no-untyped-def]
    """Return the pairs that reach a limit, their number, and the pool with the lists of their words."""
    size = 0
    listed = 0
    for number in range(len(keys)):
        if counts[number] >= limit:
            size += 1
            listed += places[number]
    room = max(_FIRST_ROOM, size + size // 2)
    kept = np.empty(room, np.uint64)
    kept_counts, begins, ends = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    size = 0
    listed = 0
    for number in range(len(keys)):
        if counts[number] >= limit:
            kept[size] = keys[number]
            kept_counts[size] = counts[number]
            begins[size] = listed
            ends[size] = listed
            listed += places[number]
            size += 1
    table, numbers = table_of(kept[:size], 2 * room)
    pool = np.empty(max(_FIRST_ROOM, listed + listed // 8), np.int32)
    for word in range(len(words.starts)):
        start = words.starts[word]
        for at in range(start, start + words.lengths[word] - 1):
            key = key_of(words.ids[at], words.ids[at + 1])
            slot = slot_of(table, key)
            if table[slot] == key:
                _list_word(pool, begins, ends, numbers[slot], word)
    return _Pairs(kept, kept_counts, begins, ends, table, numbers), size, pool


@kernel
def _merge_down_to(limit, words, pairs, size, pool, beside, merges, first_id, done):  # type: ignore[no-untyped-def]
    """Merge as long as a pair reaches the limit; return the working arrays, which may have grown."""
    heap = PairHeap(np.empty(len(pairs.keys), np.int64), np.empty(len(pairs.keys), np.int32))
    for number in range(size):
        push(heap, pairs.keys, number, pairs.counts[number], number)
    in_heap = size
    used = pairs.ends[size - 1] if size > 0 else 0
    for number in range(size):
        used = max(used, pairs.ends[number])
    while done[0] < len(merges.left) and done[1] == 0:
        pair, in_heap = _best(heap, pairs, in_heap, limit)
        if pair < 0:
            break
        new = first_id + done[0]
        merges.left[done[0]] = np.int32(pairs.keys[pair] >> HALF)
        merges.right[done[0]] = np.int32(pairs.keys[pair] & LOW)
        merges.counts[done[0]] = pairs.counts[pair]
        beside, number, found = _merged(words, pairs, pair, pool, beside, new)
        pairs.counts[pair] = 0
        old = size
        pairs, size, pool, used = _admitted(pairs, size, pool, used, beside, number, found, new, limit)
        for fresh in range(old, size):
            if in_heap == len(heap.counts):
                heap = PairHeap(grown(heap.counts), grown(heap.pairs))
            push(heap, pairs.keys, in_heap, pairs.counts[fresh], fresh)
            in_heap += 1
        done[0] += 1
    return beside


@kernel
def _best(heap, pairs, size, limit):  # type: ignore[no-untyped-def]
    """Take the pair of the greatest count off the heap, -1 where none reaches the limit; return it and the heap's size.

    An entry says what its pair's count was; it only may have fallen, and is then put where it belongs.
    """
    while size > 0:
        pair = heap.pairs[0]
        count = pairs.counts[pair]
        is_true = heap.counts[0] == count
        if not is_true and count >= limit:
            sink(heap, pairs.keys, size, count, pair)
            continue
        size -= 1
        if size > 0:
            sink(heap, pairs.keys, size, heap.counts[size], heap.pairs[size])
        if is_true:
            return pair, size
    return -1, size


@kernel
def _merged(words, pairs, pair, pool, beside, new):  # type: ignore[no-untyped-def]
    """Rewrite the words that hold a pair; return what then stands beside `new`, at how many places and how often."""
    left, right = np.int64(pairs.keys[pair] >> HALF), np.int64(pairs.keys[pair] & LOW)
    number = 0
    found = 0
    for place in range(pairs.begins[pair], pairs.ends[pair]):
        word = pool[place]
        start, end = words.starts[word], words.starts[word] + words.lengths[word]
        at = start
        while at + 1 < end and not (words.ids[at] == left and words.ids[at + 1] == right):
            at += 1
        if at + 1 < end:
            if found + 2 * (end - at) > len(beside.at):
                beside = _with_more_room(beside, found + 2 * (end - at))
            number, found = _rewritten(words, pairs, word, at, left, right, new, beside, number, found)
    return beside, number, found


@kernel
def _rewritten(words, pairs, word, at, left, right, new, beside, number, found):  # type: ignore[no-untyped-def]
    """Merge in one word from the first occurrence on; count down what is no more, note what came to stand together."""
    room = len(beside.counts) >> 1
    start, end, weight = words.starts[word], words.starts[word] + words.lengths[word], words.counts[word]
    to = at
    after_new = False
    while at < end:
        is_pair = at + 1 < end and words.ids[at] == left and words.ids[at + 1] == right
        if is_pair and to > start:
            # Of two occurrences side by side, the pair between them is the right symbol with the left one.
            before = right if after_new else np.int64(words.ids[to - 1])
            _count_down(pairs, before, left, weight)
            number = _note(beside, number, found, new if after_new else room + before, word, weight)
            found += 1
        elif after_new and not is_pair:
            behind = np.int64(words.ids[at])
            _count_down(pairs, right, behind, weight)
            number = _note(beside, number, found, behind, word, weight)
            found += 1
        words.ids[to] = new if is_pair else words.ids[at]
        to += 1
        at += 2 if is_pair else 1
        after_new = is_pair
    words.lengths[word] = to - start
    return number, found


@kernel
def _count_down(pairs, left, right, weight):  # type: ignore[no-untyped-def]
    key = key_of(left, right)
    slot = slot_of(pairs.table, key)
    if pairs.table[slot] == key:
        pairs.counts[pairs.numbers[slot]] -= weight


@kernel
def _note(beside, number, found, place, word, weight):  # type: ignore[no-untyped-def]
    """Note one occurrence of a place; return the number of places that have any."""
    if beside.words[place] == 0:
        beside.places[number] = place
        number += 1
    beside.counts[place] += weight
    beside.words[place] += 1
    beside.at[found] = place
    beside.word[found] = word
    return number


@kernel
def _admitted(pairs, size, pool, used, beside, number, found, new, limit):  # type: ignore[no-untyped-def]
    """Track the pairs of a new symbol that reach the limit, and forget what stood beside it.

    Returns the pairs, their number, the pool, and how much of it is used.
    """
    room = len(beside.counts) >> 1
    for index in range(number):
        place = beside.places[index]
        beside.lists[place] = -1
        if beside.counts[place] >= limit:
            if size == len(pairs.keys):
                pairs = _with_room_for_pairs(pairs)
            key = key_of(place - room, new) if place >= room else key_of(new, place)
            slot = slot_of(pairs.table, key)
            pairs.table[slot] = key
            pairs.numbers[slot] = size
            pairs.keys[size] = key
            pairs.counts[size] = beside.counts[place]
            pairs.begins[size] = used
            pairs.ends[size] = used
            used += beside.words[place]
            beside.lists[place] = size
            size += 1
        beside.counts[place] = 0
        beside.words[place] = 0
    if used > len(pool):
        pool = at_least(pool, used + used // 4)
    for index in range(found):
        pair = beside.lists[beside.at[index]]
        if pair >= 0:
            _list_word(pool, pairs.begins, pairs.ends, pair, beside.word[index])
    return pairs, size, pool, used


@kernel
def _list_word(pool, begins, ends, pair, word):  # type: ignore[no-untyped-def]
    """Add a word to the list of a pair, unless it was the last that was added."""
    end = ends[pair]
    if end == begins[pair] or pool[end - 1] != word:
        pool[end] = word
        ends[pair] = end + 1


@kernel
def _with_room_for_pairs(pairs):  # type: ignore[no-untyped-def]
    keys = grown(pairs.keys)
    table, numbers = table_of(pairs.keys, 2 * len(keys))
    return _Pairs(keys, grown(pairs.counts), grown(pairs.begins), grown(pairs.ends), table, numbers)


@kernel
def _with_more_room(beside, room):  # type: ignore[no-untyped-def]
    at, word = at_least(beside.at, 2 * room), at_least(beside.word, 2 * room)
    return _Beside(beside.counts, beside.words, beside.places, beside.lists, at, word)
