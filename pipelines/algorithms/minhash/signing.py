"""MinHash signatures by a compiled kernel, bit for bit those of `datasketch.MinHash` with the scheme affine32."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.minhash.minima import LANES, SHINGLES, lower_minima
from pipelines.algorithms.minhash.normal_text import hash_column, nfc_column
from pipelines.algorithms.minhash.shingles import SHINGLING, Hashes, Numbers, shingle_hashes_of
from pipelines.algorithms.ngrams.hashing import SEED
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import new_totals, read_ngrams

if TYPE_CHECKING:
    from datasketch import MinHash

Values = npt.NDArray[np.uint32]

# The value of each permutation in the signature of a text without shingles.
EMPTY = 0xFFFFFFFF
# update_batch holds shingles x permutations values at once: 4 MB for 128 permutations.
_UPDATE_SHINGLES = 8192
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_SHIFT, _OTHER_SHIFT = np.uint32(16), np.uint32(13)
_MIX, _OTHER_MIX = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


class Signed(NamedTuple):
    """Per text: its hash, uint64 (texts, 2), MinHash values, uint32 (texts, num_perm), and number of shingles.

    The shingles of a text are counted with repeats.
    """

    text_hashes: Hashes
    values: Values
    shingles: Numbers


def sign(texts: pa.Array, ngram: int, num_perm: int, seed: int) -> Signed:
    """Return the hashes and signatures of texts, an array of strings without nulls.

    Memory: about 3 MB; a copy of the texts if one of them is not in form NFC.
    """
    column = nfc_column(texts)
    totals = new_totals(column.starts)
    values = _new_values(len(texts), num_perm)
    shingles = 0
    for chunk in read_ngrams(*column, ngram, reading_of(SHINGLING, SEED), totals):
        ngrams, numbers = chunk.arrays.ngrams[: chunk.ngrams], (chunk.first, chunk.last)
        _update(values, ngrams, shingles, totals.ngrams, numbers, num_perm, seed)
        shingles += chunk.ngrams
    values = np.ascontiguousarray(values[:, :num_perm])
    return Signed(hash_column(column), values, np.diff(totals.ngrams))


def minhash_values(hashes: Hashes, starts: Numbers, num_perm: int, seed: int) -> Values:
    """Return the MinHash values, (texts, num_perm), of the low 32 bits of shingle hashes; `starts` as of shingles."""
    values = _new_values(len(starts) - 1, num_perm)
    _update(values, hashes, 0, starts, (0, len(values)), num_perm, seed)
    return np.ascontiguousarray(values[:, :num_perm])


def check_sample(texts: pa.Array, values: Values, ngram: int, seed: int) -> None:
    """Compare signatures with those that datasketch computes of the same shingles.

    Raises ValueError that names the first text, by its number, with another signature.
    """
    hashes, starts = shingle_hashes_of(texts, ngram)
    for number, (start, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        expected = reference_values(hashes[start:end], values.shape[1], seed)
        if (values[number] != expected).any():
            place = int((values[number] != expected).argmax())
            raise ValueError(
                f"text {number}: MinHash value {place} is {values[number, place]}, datasketch has {expected[place]}"
            )


def reference_values(hashes: Hashes, num_perm: int, seed: int) -> Values:
    """Return the MinHash values, (num_perm,), of the low 32 bits of a text's shingle hashes by datasketch itself."""
    from datasketch import MinHash

    permutations = _datasketch(num_perm, seed).permutations
    minhash = MinHash(num_perm, seed, hashfunc=int, permutations=permutations, scheme="affine32")
    low = hashes & _LOW_32_BITS
    for start in range(0, len(low), _UPDATE_SHINGLES):
        minhash.update_batch(low[start : start + _UPDATE_SHINGLES].astype(np.uint32).tolist())
    values: Values = minhash.hashvalues
    return values


@functools.lru_cache(maxsize=4)
def _datasketch(num_perm: int, seed: int) -> MinHash:
    from datasketch import MinHash

    return MinHash(num_perm, seed, scheme="affine32")


@functools.lru_cache(maxsize=4)
def _permutations(num_perm: int, seed: int) -> tuple[Values, Values]:
    """Return the factor and the summand of each permutation, and zeros up to a multiple of `LANES`."""
    missing = -num_perm % LANES
    parts = _datasketch(num_perm, seed).permutations
    factors, summands = (np.pad(np.asarray(part, np.uint32), (0, missing)) for part in parts)
    return factors, summands


def _new_values(texts: int, num_perm: int) -> Values:
    """Return the values of texts without shingles, with further columns up to a multiple of `LANES`."""
    return np.full((texts, num_perm + -num_perm % LANES), EMPTY, np.uint32)


def _update(
    values: Values, hashes: Hashes, before: int, starts: Numbers, texts: tuple[int, int], num_perm: int, seed: int
) -> None:
    """Add `hashes` to signatures: the shingles from number `before` on, of texts `texts[0]` to `texts[1]` - 1."""
    factors, summands = _permutations(num_perm, seed)
    block = np.empty(SHINGLES, np.uint32)
    _take_minima(as_read_only(hashes), before, as_read_only(starts), *texts, factors, summands, block, values)


@kernel
def _take_minima(hashes, before, starts, first, last, factors, summands, block, values):  # type: ignore[no-untyped-def]
    for number in range(first, last):
        row = values[number]
        at, end = max(starts[number] - before, 0), min(starts[number + 1] - before, len(hashes))
        while at < end:
            if at + SHINGLES <= end:
                for step in range(SHINGLES):
                    block[step] = _mixed(np.uint32(hashes[at + step] & _LOW_32_BITS))
            else:
                # Repeating the last shingle of a text changes no minimum.
                for step in range(SHINGLES):
                    block[step] = _mixed(np.uint32(hashes[min(at + step, end - 1)] & _LOW_32_BITS))
            for place in range(0, len(factors), LANES):
                lower_minima(row, factors, summands, block, place)
            at += SHINGLES


@helper
def _mixed(value):  # type: ignore[no-untyped-def]
    """Mix 32 bits by MurmurHash3's finalizer, as datasketch does before it applies permutations."""
    value = np.uint32((value ^ (value >> _SHIFT)) * _MIX)
    value = np.uint32((value ^ (value >> _OTHER_SHIFT)) * _OTHER_MIX)
    return value ^ (value >> _SHIFT)
