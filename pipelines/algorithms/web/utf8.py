"""What the bytes of a page tell about its text before they are decoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.algorithms.kernels.compilation import as_read_only, kernel

_HIGH_BITS = np.uint64(0x8080808080808080)


def valid_size(data: bytes) -> int:
    """Return the size of the text in UTF-8, which is that of the data less a character cut off at the end; else -1."""
    words = np.frombuffer(data, np.uint64, len(data) // 8)
    return int(_valid_size(as_read_only(np.frombuffer(data, np.uint8)), as_read_only(words)))


def has_controls(data: bytes) -> bool:
    """Return whether there are control bytes other than tab and line ends."""
    return bool(_has_controls(as_read_only(np.frombuffer(data, np.uint8))))


@kernel
def _valid_size(data: Any, words: Any) -> Any:
    position, end = 0, len(data)
    while position < end:
        if position & 7 == 0:  # most text is ASCII
            word = position >> 3
            while word < len(words) and words[word] & _HIGH_BITS == 0:
                word += 1
            position = word << 3
            if position == end:
                break
        first = data[position]
        if first < 128:
            position += 1
            continue
        if not 0xC2 <= first <= 0xF4:
            return -1
        size = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
        if position + 1 < end:
            # Not longer than needed, no surrogate, at most U+10FFFF.
            low = 0xA0 if first == 0xE0 else (0x90 if first == 0xF0 else 0x80)
            high = 0x9F if first == 0xED else (0x8F if first == 0xF4 else 0xBF)
            if not low <= data[position + 1] <= high:
                return -1
        for following in range(position + 2, min(end, position + size)):
            if data[following] & 0xC0 != 0x80:
                return -1
        if position + size > end:
            break
        position += size
    return position


@kernel
def _has_controls(data: Any) -> Any:
    has_controls = False
    for byte in data:  # to the end, since a loop without exit runs on many bytes at once
        has_controls |= (byte < 32) & (byte != 9) & (byte != 10) & (byte != 13)
    return has_controls
