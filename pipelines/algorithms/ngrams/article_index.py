"""Which n-grams occur in a reference, and the first of its articles that contains each.

The high bits of a hash select one of up to `MAX_PARTS` parts, each a hash table with linear probing. A slot has the low
32 bits of an n-gram's hash and the number of its article; the bits in between select the slot where the search begins.
An absent n-gram is compared with 4 others on average, so it counts as present with a probability of about 10**-9.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.byte_scan import prefetch
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.ngrams.word_scan import Numbers

# The number of an article that is not there, and the content of an empty slot.
NONE = np.uint32((1 << 32) - 1)
EMPTY = np.uint64((1 << 64) - 1)

_PART_BITS = 10
MAX_PARTS = 1 << _PART_BITS
_PART_SHIFT, _SLOT_SHIFT = np.uint64(64 - _PART_BITS), np.uint64(32 - _PART_BITS)
_LOW, _HALF = np.uint64((1 << 32) - 1), np.uint64(32)
# Half of the n-grams need half of the time and memory: 9 equal words are always recognized, 8 in half of the cases.
_STEP = 2
# Prefetch the slot of the n-gram this many positions later: 57 instead of 96 ns per n-gram in 32 tables of 10 MB.
_AHEAD = 16

Hashes = npt.NDArray[np.uint64]
Articles = npt.NDArray[np.uint32]


def sample_ngrams(hashes: Hashes, starts: Numbers) -> tuple[Hashes, Articles]:
    """Return every second n-gram of each text and its last one, and the numbers of their texts.

    `starts`: the number of the first n-gram of each text, and last the number of all (`hashing.NgramHashes.documents`).
    """
    texts = np.repeat(np.arange(len(starts) - 1, dtype=np.uint32), np.diff(starts))
    numbers = np.arange(starts[0], starts[-1])
    sample = np.flatnonzero(((numbers - starts[texts]) % _STEP == 0) | (numbers + 1 == starts[texts + 1]))
    return hashes[sample], texts[sample]


def parts_of(hashes: Hashes, parts: int) -> npt.NDArray[np.uint16]:
    """Return the part of each n-gram; `parts` is a power of two."""
    return (hashes >> _PART_SHIFT).astype(np.uint16) // np.uint16(MAX_PARTS // parts)


def new_table(ngrams: int) -> Hashes:
    """Return an empty table for some n-grams, which fill two thirds of it."""
    return np.full(ngrams + ngrams // 2 + 1, EMPTY)


def add_ngrams(table: Hashes, hashes: Hashes, articles: Articles) -> None:
    """Add n-grams to a table; one that is there already keeps its article."""
    _add(table, as_read_only(hashes), as_read_only(articles))


def find_articles(table: Hashes, hashes: Hashes, numbers: Numbers, articles: Articles) -> None:
    """Write the first article with each n-gram `hashes[i]` to `articles[i]`, or NONE, for each i of `numbers`."""
    _find(as_read_only(table), as_read_only(hashes), numbers, articles)


def covered_words(articles: Articles, starts: Numbers, n: int) -> Numbers:
    """Return how many words of each text are in an n-gram that has an article, or between two, at most n words apart.

    `starts`: see `sample_ngrams`.
    """
    positions = np.flatnonzero(articles != NONE)
    texts = np.searchsorted(starts, positions, side="right") - 1
    words, steps = np.full(len(positions), n), np.diff(positions)
    follows = (np.diff(texts) == 0) & (steps <= 2 * n)
    words[1:][follows] = steps[follows]
    return np.bincount(texts, words, minlength=len(starts) - 1).astype(np.int64)


@helper
def _first_slot(table, value):  # type: ignore[no-untyped-def]
    return np.int64(((value >> _SLOT_SHIFT) & _LOW) * np.uint64(len(table)) >> _HALF)


@helper
def _slot_of(table, value):  # type: ignore[no-untyped-def]
    """Return the slot of an n-gram, or the empty one where it belongs."""
    slot = _first_slot(table, value)
    while table[slot] != EMPTY and table[slot] >> _HALF != value & _LOW:
        slot = slot + 1 if slot + 1 < len(table) else 0
    return slot


@kernel
def _add(table, hashes, articles):  # type: ignore[no-untyped-def]
    for number in range(len(hashes)):
        slot = _slot_of(table, hashes[number])
        if table[slot] == EMPTY:
            table[slot] = hashes[number] << _HALF | np.uint64(articles[number])


@kernel
def _find(table, hashes, numbers, articles):  # type: ignore[no-untyped-def]
    for at in range(len(numbers)):
        if at + _AHEAD < len(numbers):
            prefetch(table, _first_slot(table, hashes[numbers[at + _AHEAD]]))
        articles[numbers[at]] = table[_slot_of(table, hashes[numbers[at]])] & _LOW
