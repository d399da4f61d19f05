"""64-bit hashes of words and word n-grams, straight from the bytes of a column of text; no Python object for a word.

Texts come as `data, starts`: the bytes of a column and where each text begins in them, last where all end, one more
than there are texts (`text_columns.text_arrays`). Words are those of `ngrams.words`, to the letter: property tests hold
both equal on all of Unicode. A hash depends on the words, in order, and on the seed alone.

**Words** are hashed 16 bytes at a time by multiplications and shifts; words of up to 8 bytes never share a hash.
**N-grams** are hashed as a polynomial in their words' hashes modulo 2**64, which rolls: as a window moves on by a word,
one term leaves and one comes. That suffices, since the terms are well mixed before they are added: two n-grams share
the sum where one word's hash equals an expression of the others', at a chance of 2**-64. It is more only where
the differing words are tied to each other; the base is 5 modulo 8, so n-grams that differ in the order of their words,
or in one word that is repeated, lose at most 5 of the 64 bits up to n = 16. The last step mixes the sum, one to one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.pair_table import at_least
from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.ngrams.word_bits import new_bits, reading_of
from pipelines.algorithms.ngrams.word_scan import (
    Count,
    Found,
    as_read_only,
    find_words,
    longest_piece,
    most_normal,
    most_words,
    new_found,
    piece_end,
)
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization

SEED = 0x2545F4914F6CDD1D
# What a file that keeps hashes of n-grams calls them; another hash needs another name.
NAME = "ngram-polynomial-1"

_BASE = np.uint64(0xD1342543DE82EF95)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(32)
_ONE = np.uint64(1)

_Hashes = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64]


class Words(NamedTuple):
    """The words of all texts, in order, as arrays.

    `hashes`: uint64. `starts`, `ends`: where each word begins and ends, in bytes of `data`; empty where not asked for.
    `documents`: the number of the first word of each text, and last the number of words. `segments`: the number of the
    first word of each run of words that an n-gram does not leave, none of them empty, and last the number of words.
    """

    hashes: _Hashes
    starts: _Numbers
    ends: _Numbers
    documents: _Numbers
    segments: _Numbers


class Ngrams(NamedTuple):
    """The n-grams of all texts, in order: hashes, the number of the first word of each.

    `documents`: the number of the first n-gram of each text, and last the number of n-grams.
    """

    hashes: _Hashes
    words: _Numbers
    documents: _Numbers


class NgramHashes(NamedTuple):
    """The hashes of the n-grams of all texts, in order; the number of the first n-gram, and word, of each text.

    `documents` and `words` have one entry more than there are texts, the number of all.
    """

    hashes: _Hashes
    documents: _Numbers
    words: _Numbers


def word_hashes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[Any],
    normalization: Normalization = DEFAULT,
    *,
    seed: int = SEED,
    spans: bool = True,
) -> Words:
    """Return the words of texts (UTF-8; int32 or int64 `starts`): 64-bit hashes and, if asked for, where they stand."""
    found = _all_words(*arrays_to_scan(data, starts), reading_of(normalization, seed), spans)
    return Words(*found)


def ngram_hashes(words: Words, n: int) -> Ngrams:
    """Return the n-grams of words: 64-bit hashes, and from which word to which text they belong."""
    return Ngrams(*_ngrams_of_words(words.hashes, words.segments, words.documents, n))


def text_ngram_hashes(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[Any],
    n: int,
    normalization: Normalization = DEFAULT,
    *,
    seed: int = SEED,
) -> NgramHashes:
    """Return the hashes of the n-grams of texts as `ngram_hashes(word_hashes(...), n)` has them, without the words."""
    return NgramHashes(*_ngrams_of_texts(*arrays_to_scan(data, starts), n, reading_of(normalization, seed)))


def arrays_to_scan(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return texts as the kernels take them: read-only bytes, and int64 starts, which lie within the bytes."""
    if len(starts) and (starts[0] < 0 or starts[-1] > len(data) or (starts[1:] < starts[:-1]).any()):
        raise ValueError(f"the texts reach from byte {starts[0]} to {starts[-1]}, but there are {len(data)} bytes")
    return as_read_only(data), as_read_only(starts.astype(np.int64))


@kernel
def roll(hashes, start, end, n, mask, ngrams, at):  # type: ignore[no-untyped-def]
    """Hash each n words in a row from `start` to `end`, write the hashes from `at` on, return where they end."""
    if end - start < n:
        return at
    total, leaves = np.uint64(0), _ONE
    for word in range(start, start + n):
        total = total * _BASE + hashes[word]
        leaves *= _BASE
    ngrams[at] = _mixed(total) & mask
    at += 1
    for word in range(start + n, end):
        total = total * _BASE + (hashes[word] - hashes[word - n] * leaves)
        ngrams[at] = _mixed(total) & mask
        at += 1
    return at


@kernel
def _mixed(total):  # type: ignore[no-untyped-def]
    total = (total ^ (total >> _SHIFT)) * _MIX_1
    total = (total ^ (total >> _SHIFT)) * _MIX_2
    return total ^ (total >> _SHIFT)


@kernel
def run_of(found, count, number):  # type: ignore[no-untyped-def]
    """Return where a run of words begins and ends; number 0 goes on with what was kept, and may be empty."""
    start = found.segments[number - 1] if number else np.int64(0)
    return start, found.segments[number] if number < count.segments else count.words


@kernel
def _all_words(buffer, starts, reading, spans):  # type: ignore[no-untyped-def]
    longest = longest_piece(buffer, starts)
    bits, scratch = new_bits(longest), new_found(most_words(longest), most_normal(longest))
    documents = np.zeros(max(1, len(starts)), np.int64)
    room = most_words(longest) + (starts[-1] - starts[0]) // 5 if len(starts) else 0
    hashes, begins, ends = np.empty(room, np.uint64), np.empty(room * spans, np.int64), np.empty(room * spans, np.int64)
    segments = np.empty(len(starts) + most_words(longest), np.int64)
    words = runs = 0
    for text in range(len(starts) - 1):
        start, fresh = starts[text], True
        while start < starts[text + 1]:
            end = piece_end(buffer, start, starts[text + 1])
            if words + most_words(end - start) > len(hashes):
                hashes = at_least(hashes, 2 * len(hashes))
                begins, ends = at_least(begins, 2 * len(begins)), at_least(ends, 2 * len(ends))
            if runs + most_words(end - start) + 1 > len(segments):
                segments = at_least(segments, 2 * len(segments))
            found = Found(
                hashes[words:], begins[words:], ends[words:], scratch.normal_starts, scratch.normal, segments[runs:]
            )
            count = Count(np.int64(0), np.int64(0), np.int64(0), fresh)
            count = find_words(
                buffer, (starts[text], starts[text + 1]), (start, end), reading, bits, found, count, spans
            )
            segments[runs : runs + count.segments] += words
            words, runs, fresh, start = words + count.words, runs + count.segments, count.fresh, end
        documents[text + 1] = words
    segments[runs] = words
    return hashes[:words], begins[: words * spans], ends[: words * spans], documents, segments[: runs + 1]


@kernel
def _ngrams_of_words(hashes, segments, documents, n):  # type: ignore[no-untyped-def]
    total = 0
    for run in range(len(segments) - 1):
        total += max(0, segments[run + 1] - segments[run] - n + 1)
    ngrams, words, firsts = np.empty(total, np.uint64), np.empty(total, np.int64), np.zeros(len(documents), np.int64)
    at = text = 0
    for run in range(len(segments) - 1):
        while documents[text + 1] <= segments[run]:
            text += 1
            firsts[text] = at
        before = at
        at = roll(hashes, segments[run], segments[run + 1], n, ~np.uint64(0), ngrams, at)
        for number in range(before, at):
            words[number] = segments[run] + number - before
    firsts[text + 1 :] = at
    return ngrams, words, firsts


@kernel
def _ngrams_of_texts(buffer, starts, n, reading):  # type: ignore[no-untyped-def]
    longest = longest_piece(buffer, starts)
    bits, found = new_bits(longest), new_found(most_words(longest) + n, most_normal(longest))
    documents, firsts = np.zeros(max(1, len(starts)), np.int64), np.zeros(max(1, len(starts)), np.int64)
    ngrams = np.empty(most_words(longest) + n + (starts[-1] - starts[0]) // 5 if len(starts) else 0, np.uint64)
    words = at = 0
    for text in range(len(starts) - 1):
        start = starts[text]
        kept, fresh = np.int64(0), True
        while start < starts[text + 1]:
            end = piece_end(buffer, start, starts[text + 1])
            count = find_words(
                buffer,
                (starts[text], starts[text + 1]),
                (start, end),
                reading,
                bits,
                found,
                Count(kept, np.int64(0), np.int64(0), fresh),
                False,
            )
            if at + count.words > len(ngrams):
                ngrams = at_least(ngrams, 2 * len(ngrams))
            for number in range(count.segments + 1):
                run_start, run_end = run_of(found, count, number)
                at = roll(found.hashes, run_start, run_end, n, ~np.uint64(0), ngrams, at)
            words += count.words - kept
            run_start, run_end = run_of(found, count, count.segments)
            kept = min(n - 1, run_end - run_start)
            for step in range(kept):
                found.hashes[step] = found.hashes[run_end - kept + step]
            fresh, start = count.fresh, end
        documents[text + 1], firsts[text + 1] = at, words
    return ngrams[:at], documents, firsts
