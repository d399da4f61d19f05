"""Shingles: the 64-bit hashes of a text's word n-grams, as sets, and the true Jaccard similarity of two sets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.byte_scan import bit_count, word_at
from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.minhash.normal_text import nfc_column
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Shingling

SHINGLING = Shingling()

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_LOW_BITS, _TOP_BITS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)


def shingle_hashes_of(texts: pa.Array, ngram: int) -> tuple[Hashes, Numbers]:
    """Return the hashes of all shingles of texts in order, repeats included, and where those of each text begin.

    The texts, an array of strings without nulls, are read in form NFC. `starts` has one more entry, the end.
    """
    ngrams = text_ngram_hashes(*nfc_column(texts), ngram, SHINGLING)
    return ngrams.hashes, ngrams.documents


def sorted_sets(hashes: Hashes, starts: Numbers) -> tuple[Hashes, Numbers]:
    """Return the distinct hashes of each text, sorted, and where those of each begin; `hashes` is overwritten."""
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        hashes[start:end].sort()
    distinct = np.zeros(len(starts), np.int64)
    _keep_distinct(hashes, as_read_only(starts), distinct)
    return hashes[: distinct[-1]], distinct


@kernel
def _keep_distinct(hashes, starts, distinct):  # type: ignore[no-untyped-def]
    size = np.int64(0)
    for number in range(len(starts) - 1):
        for at in range(starts[number], starts[number + 1]):
            if at == starts[number] or hashes[at] != hashes[size - 1]:
                hashes[size] = hashes[at]
                size += 1
        distinct[number + 1] = size


@helper
def jaccard_of(left, right):  # type: ignore[no-untyped-def]
    """Return the Jaccard similarity of two sets given as sorted uint64 arrays without repeats; 0 where one is empty."""
    at = other = shared = np.int64(0)
    while at < len(left) and other < len(right):
        value, other_value = left[at], right[other]
        shared += value == other_value
        at += value <= other_value
        other += other_value <= value
    return shared / (len(left) + len(right) - shared) if shared else 0.0


@helper
def agreeing(left, right):  # type: ignore[no-untyped-def]
    """Return how many bytes of two equally long uint8 arrays are equal; the length is a multiple of 8."""
    equal = np.int64(0)
    for at in range(0, len(left), 8):
        bits = word_at(left, at) ^ word_at(right, at)
        # The top bit of each byte that is not zero.
        bits = ((bits & _LOW_BITS) + _LOW_BITS) | bits
        equal += bit_count(~bits & _TOP_BITS)
    return equal
