"""Splits a column of texts into chunks of many short texts or a part of a long one, so that memory is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 1 << 17

# A long text is split at an ASCII character that is part of no word, if it has one.
_ENDS = rb"[\x00-&(-/:-@\[-`{-\x7f]"
DIVIDER = re.compile(_ENDS)
# Or before a character of Thai, Lao, Tibetan, Burmese, Khmer, kana or Han, if it cannot be inside of a word.
UNSPACED_DIVIDER = re.compile(_ENDS + rb"|\xe0[\xb8-\xbf]|\xe1[\x80\x81\x9e\x9f]|\xe3[\x81-\x83]|[\xe4-\xe9]")


def list_chunks(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], divider: re.Pattern[bytes]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the first text of each chunk, the one after its last, and the bytes where it begins and ends.

    A text of more than 128 KiB has several chunks, which are cut where a match of `divider` begins.
    """
    first, texts = 0, len(starts) - 1
    while first < texts:
        begin = int(starts[first])
        last = int(starts.searchsorted(begin + CHUNK_BYTES, side="right")) - 1
        if last > first:
            yield first, last, begin, int(starts[last])
            first = last
            continue
        stop = int(starts[first + 1])
        while begin < stop:
            match = divider.search(data.data, begin + CHUNK_BYTES, stop)
            end = match.start() if match else stop
            yield first, first + 1, begin, end
            begin = end
        first += 1
