"""The words of many n-grams of an index at a time, as an Arrow column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.ngrams.index import NgramIndex, settings_of

_SPACE = ord(" ")


def ngram_texts(index: NgramIndex, ids: npt.NDArray[np.int64]) -> pa.StringArray:
    """Return the words of n-grams, with single spaces between."""
    starts = np.asarray(index.starts[ids], np.int64)
    ends = _ends(np.asarray(index.text), starts, settings_of(index).n)
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    data = _copied(np.asarray(index.text), starts, offsets)
    return pa.LargeStringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(data)).cast(pa.string())


@kernel
def _ends(text, starts, n):  # type: ignore[no-untyped-def]
    """Return where each n-gram ends: at the n-th space from its beginning on."""
    ends = np.empty(len(starts), np.int64)
    for number in range(len(starts)):
        at, left = starts[number], n
        while True:
            if text[at] == _SPACE:
                left -= 1
                if left == 0:
                    break
            at += 1
        ends[number] = at
    return ends


@kernel
def _copied(text, starts, offsets):  # type: ignore[no-untyped-def]
    data = np.empty(offsets[-1], np.uint8)
    for number in range(len(starts)):
        for at in range(offsets[number + 1] - offsets[number]):
            data[offsets[number] + at] = text[starts[number] + at]
    return data
