"""Shingles: the 64-bit hashes of a text's word n-grams, in order and as sets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.compilation import as_read_only, kernel
from pipelines.algorithms.minhash.normal_text import nfc_column
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Shingling

SHINGLING = Shingling()

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


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
