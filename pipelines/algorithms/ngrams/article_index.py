"""Which n-grams occur in a reference, and the first of its articles that contains each.

An n-gram is its 64-bit hash alone: one that is absent is found with a probability of n-grams / 2**64. Bits from the
middle of the hash select one of up to `MAX_PARTS` parts, each of which is built and queried by itself: their high and
low bits serve its directory and its sieve (see `index`), so an absent n-gram costs one cache miss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import as_read_only, kernel
from pipelines.algorithms.ngrams.index import directory_and_sieve, pass_sieve, shift_for

# The number of an article that is not there.
NONE = np.uint32((1 << 32) - 1)

_PART_SHIFT = np.uint64(20)
_DIGIT_BITS = 10
_DIGITS = 1 << _DIGIT_BITS
MAX_PARTS = _DIGITS

Hashes = npt.NDArray[np.uint64]
Articles = npt.NDArray[np.uint32]


class ArticleIndex(NamedTuple):
    """A part of an index: distinct hashes, ascending, and the number of the first article with each.

    `directory`, `sieve`: see `index.NgramIndex`.
    """

    hashes: Hashes
    articles: Articles
    directory: npt.NDArray[Any]
    sieve: Hashes


def order_by_part(hashes: Hashes, articles: Articles, parts: int) -> tuple[Hashes, Articles, npt.NDArray[np.int64]]:
    """Return n-grams in order of their parts, equal ones as they were, and where each part ends.

    `articles`: any number of each n-gram; `parts`: a power of two.
    """
    ordered, ends = (np.empty_like(hashes), np.empty_like(articles)), np.zeros(_DIGITS + 1, np.int64)
    _scatter(hashes, articles, _PART_SHIFT, ends, *ordered)
    return *ordered, ends[_DIGITS // parts - 1 : _DIGITS : _DIGITS // parts]


def build_part(hashes: Hashes, articles: Articles) -> ArticleIndex:
    """Return the index of n-grams, equal ones in order of their articles; takes as much memory again as they do."""
    for shift in (64 - 2 * _DIGIT_BITS, 64 - _DIGIT_BITS):
        ordered = np.empty_like(hashes), np.empty_like(articles)
        _scatter(hashes, articles, np.uint64(shift), np.zeros(_DIGITS + 1, np.int64), *ordered)
        hashes, articles = ordered
    size = _make_distinct(hashes, articles, np.uint64(64 - 2 * _DIGIT_BITS))
    return ArticleIndex(hashes[:size], articles[:size], *directory_and_sieve(hashes[:size]))


def find_articles(index: ArticleIndex, hashes: Hashes) -> Articles:
    """Return the first article with each n-gram, NONE for those that are not in this part."""
    articles = np.full(len(hashes), NONE)
    _look_up(
        ArticleIndex(*(as_read_only(array) for array in index)), hashes, np.empty(len(hashes) + 1, np.int64), articles
    )
    return articles


def covered_words(articles: Articles, starts: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Return how many words of each text are in an n-gram that has an article.

    `starts`: the number of the first n-gram of each text, and last the number of all (`hashing.NgramHashes.documents`).
    """
    covered = np.zeros(len(starts) - 1, np.int64)
    _count_covered(articles, starts, n, covered)
    return covered


@kernel
def _scatter(hashes, articles, shift, starts, ordered_hashes, ordered_articles):  # type: ignore[no-untyped-def]
    """Order n-grams by 10 bits of their hash, those with equal ones as they were.

    `starts` has zeros; after it, the ends of the groups.
    """
    mask = np.uint64(_DIGITS - 1)
    for number in range(len(hashes)):
        starts[np.int64((hashes[number] >> shift) & mask) + 1] += 1
    for digit in range(_DIGITS):
        starts[digit + 1] += starts[digit]
    for number in range(len(hashes)):
        group = np.int64((hashes[number] >> shift) & mask)
        ordered_hashes[starts[group]], ordered_articles[starts[group]] = hashes[number], articles[number]
        starts[group] += 1


@kernel
def _make_distinct(hashes, articles, shift):  # type: ignore[no-untyped-def]
    """Sort n-grams that are in order of the bits above `shift` and keep the first of equal ones; return how many."""
    size = begin = 0
    for number in range(len(hashes)):
        value, article = hashes[number], articles[number]
        if size and value >> shift != hashes[begin] >> shift:
            begin = size
        at = size
        while at > begin and hashes[at - 1] > value:
            at -= 1
        if at > begin and hashes[at - 1] == value:
            continue
        for later in range(size, at, -1):
            hashes[later], articles[later] = hashes[later - 1], articles[later - 1]
        hashes[at], articles[at] = value, article
        size += 1
    return size


@kernel
def _look_up(index, hashes, candidates, articles):  # type: ignore[no-untyped-def]
    """Write the article of each n-gram that is in the index."""
    to_entry = shift_for(len(index.directory) - 1)
    for candidate in range(pass_sieve(index.sieve, hashes, len(hashes), candidates)):
        value = hashes[candidates[candidate]]
        entry = np.int64(value >> to_entry)
        for number in range(np.int64(index.directory[entry]), np.int64(index.directory[entry + 1])):
            if index.hashes[number] == value:
                articles[candidates[candidate]] = index.articles[number]
                break


@kernel
def _count_covered(articles, starts, n, covered):  # type: ignore[no-untyped-def]
    for text in range(len(starts) - 1):
        end = starts[text]  # of the words that are counted, as the number of the n-gram that begins there
        for number in range(starts[text], starts[text + 1]):
            if articles[number] != NONE:
                covered[text] += number + n - max(number, end)
                end = number + n
