"""Shingles, MinHash signatures by a compiled kernel, and their bands.

Shingles are the 64-bit hashes of a text's word n-grams. Signatures are bit for bit those of `datasketch.MinHash` with
the scheme affine32. Documents that agree in all values of a band are candidates for near-duplicates.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pipelines.algorithms.kernels.compilation import as_read_only, helper, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.normal_text import hash_column, nfc_column
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import Numbers, new_totals, read_ngrams
from pipelines.algorithms.ngrams.words import Shingling

SHINGLING = Shingling()

Hashes = npt.NDArray[np.uint64]
Values = npt.NDArray[np.uint32]

# The value of each permutation in the signature of a text without shingles.
EMPTY = 0xFFFFFFFF
_RECALL = 0.99
# Values that are lowered at a time, and the shingles that all permutations are applied to, from registers.
_LANES = _SHINGLES = 16
_LOW_32_BITS = np.uint64(0xFFFFFFFF)
_SHIFT, _OTHER_SHIFT = np.uint32(16), np.uint32(13)
_MIX, _OTHER_MIX = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_INT, _LANES)
# Typed as it is used: in a kernel, without the context of its typing.
_intrinsic: Any = intrinsic
_mixed_key = helper(mix)


class Signed(NamedTuple):
    """Per text: its hash, uint64 (texts, 2), MinHash values, uint32 (texts, num_perm), and number of shingles.

    The shingles of a text are counted with repeats.
    """

    text_hashes: Hashes
    values: Values
    shingles: Numbers


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


def sign(texts: pa.Array, ngram: int, num_perm: int, seed: int) -> Signed:
    """Return the hashes and signatures of texts, an array of strings without nulls.

    Memory: about 3 MB; a copy of the texts if one of them is not in form NFC.
    """
    column = nfc_column(texts)
    totals = new_totals(column.starts)
    values = new_values(len(texts), num_perm)
    shingles = 0
    for chunk in read_ngrams(*column, ngram, reading_of(SHINGLING), totals):
        starts = totals.ngrams[chunk.first : chunk.last + 1] - shingles
        lower_values(values[chunk.first : chunk.last], chunk.arrays.ngrams[: chunk.ngrams], starts, num_perm, seed)
        shingles += chunk.ngrams
    return Signed(hash_column(column), np.ascontiguousarray(values[:, :num_perm]), np.diff(totals.ngrams))


def new_values(texts: int, num_perm: int) -> Values:
    """Return the values of texts without shingles, with further columns that kernels need."""
    return np.full((texts, num_perm + -num_perm % _LANES), EMPTY, np.uint32)


def lower_values(values: Values, hashes: Hashes, starts: Numbers, num_perm: int, seed: int) -> None:
    """Add the low 32 bits of shingle hashes to the values of texts, an array of `new_values`.

    `starts`: where the shingles of each text begin in `hashes`, and last where they end; a text may begin before them
    and end after them.
    """
    factors, summands = np.pad(permutations(num_perm, seed), ((0, 0), (0, -num_perm % _LANES)))
    block = np.empty(_SHINGLES, np.uint32)
    _take_minima(as_read_only(hashes), as_read_only(starts), factors, summands, block, values)


@functools.lru_cache(maxsize=4)
def permutations(num_perm: int, seed: int) -> Values:
    """Return the factors and the summands of the permutations, (2, num_perm), as datasketch draws them."""
    random = np.random.RandomState(seed)
    factors = random.randint(0, 1 << 31, num_perm, np.uint32) * np.uint32(2) + np.uint32(1)
    return np.stack([factors, random.randint(0, 1 << 32, num_perm, np.uint32)])


@kernel
def _take_minima(hashes, starts, factors, summands, block, values):  # type: ignore[no-untyped-def]
    for number in range(len(values)):
        row = values[number]
        at, end = max(starts[number], 0), min(starts[number + 1], len(hashes))
        while at < end:
            for step in range(_SHINGLES):
                # Repeating the last shingle of a text changes no minimum.
                block[step] = _mixed(np.uint32(hashes[min(at + step, end - 1)] & _LOW_32_BITS))
            for place in range(0, len(factors), _LANES):
                _lower_minima(row, factors, summands, block, place)
            at += _SHINGLES


@helper
def _mixed(value):  # type: ignore[no-untyped-def]
    """Mix 32 bits by MurmurHash3's finalizer, as datasketch does before it applies permutations."""
    value = np.uint32((value ^ (value >> _SHIFT)) * _MIX)
    value = np.uint32((value ^ (value >> _OTHER_SHIFT)) * _OTHER_MIX)
    return value ^ (value >> _SHIFT)


@_intrinsic
def _lower_minima(typing_context, values, factors, summands, shingles, place):  # type: ignore[no-untyped-def]
    """Lower 16 values from a place on to `factor * shingle + summand`, of each of 16 shingles; all arrays uint32.

    These are plain LLVM vectors of 512 bits where the processor has them, otherwise shorter ones or a loop. numba's own
    loop over the same values becomes vectors of 256 bits, which takes a third longer.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def pointer(argument: int, at: Any, kind: Any) -> Any:
            array = context.make_array(signature.args[argument])(context, builder, args[argument])
            return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())

        minima_at = pointer(0, args[4], _VECTOR)
        minima = builder.load(minima_at, align=4)
        factor, summand = (builder.load(pointer(argument, args[4], _VECTOR), align=4) for argument in (1, 2))
        nothing, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_VECTOR, [0] * _LANES)
        for number in range(_SHINGLES):
            shingle = builder.load(pointer(3, ir.Constant(ir.IntType(64), number), _INT), align=4)
            copies = builder.shuffle_vector(builder.insert_element(nothing, shingle, _INT(0)), nothing, first)
            value = builder.add(builder.mul(factor, copies), summand)
            minima = builder.select(builder.icmp_unsigned("<", value, minima), value, minima)
        builder.store(minima, minima_at, align=4)
        return context.get_dummy_value()

    return types.void(values, factors, summands, shingles, types.int64), build


def choose_bands(num_perm: int, threshold: float, recall: float = _RECALL) -> tuple[int, int]:
    """Return the bands and rows per band: the most rows with which pairs at the threshold are found with this recall.

    More rows make fewer false candidates. Where no number of rows reaches the recall, one row per band comes nearest.
    """
    for rows in range(num_perm, 1, -1):
        if candidate_probability(threshold, num_perm // rows, rows) >= recall:
            return num_perm // rows, rows
    return num_perm, 1


def candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents of a Jaccard similarity agree in at least one band."""
    return float(1.0 - (1.0 - similarity**rows) ** bands)


def band_keys(values: npt.NDArray[np.uint32], bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each band: (documents, num_perm) -> (documents, bands); further values are not used.

    The keys of different bands are never equal.
    """
    keys = np.empty((len(values), bands), np.uint64)
    _fill_keys(as_read_only(values), rows, np.uint64((1 << (bands - 1).bit_length()) - 1), keys)
    return keys


@kernel
def _fill_keys(values, rows, band_bits, keys):  # type: ignore[no-untyped-def]
    for document in range(len(keys)):
        for band in range(keys.shape[1]):
            key = np.uint64(0)
            for row in range(band * rows, (band + 1) * rows):
                key = _mixed_key((key ^ np.uint64(values[document, row])) + STEP)
            # The low bits are the band's number, and mixing is one to one.
            keys[document, band] = _mixed_key(key & ~band_bits | np.uint64(band))
