"""Sketches of 128 bytes that travel with a released document, and the similarity of two texts that they estimate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.minhash.pairing import estimated_jaccard
from pipelines.algorithms.minhash.signing import sign

SKETCH_BYTES = 128
SKETCH_TYPE = pa.binary(SKETCH_BYTES)
# The defaults of `webtext dedup`. Sketches outlive the run that made them, so later defaults must not change them.
_NGRAM, _SEED = 5, 1


def sketches(texts: pa.Array) -> pa.FixedSizeBinaryArray:
    """Return the sketch of each text, an array of strings without nulls: the low byte of its 128 MinHash values.

    A text without words has a sketch of 128 bytes 0xff.
    """
    values = sign(texts, _NGRAM, SKETCH_BYTES, _SEED).values.astype(np.uint8)
    return pa.FixedSizeBinaryArray.from_buffers(SKETCH_TYPE, len(texts), [None, pa.py_buffer(values)])


def estimate_jaccard(sketches: pa.Array, others: pa.Array) -> npt.NDArray[np.float64]:
    """Return the estimated Jaccard similarity of each pair of sketches, two arrays of equal length without nulls.

    The standard error is at most 0.045, near similarity 1/2; equal texts have exactly 1.
    """
    left, right = (np.frombuffer(b"".join(array.to_pylist()), np.uint8) for array in (sketches, others))
    agreement = (left == right).reshape(-1, SKETCH_BYTES).sum(axis=1)
    return estimated_jaccard(agreement, SKETCH_BYTES)
