"""Columns of texts as arrays: their bytes, and where each text begins in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def text_arrays(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return the bytes of a column without nulls, and the offset of each text in them plus the end of the last.

    Offsets are int32, or int64 for large strings. Nothing is copied; the bytes may include others before the first text
    and after the last.
    """
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, kind)
    _, offsets, data = texts.buffers()
    text_bytes = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return text_bytes, np.frombuffer(offsets, kind)[texts.offset : texts.offset + len(texts) + 1]
