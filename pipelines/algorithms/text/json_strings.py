"""Copies the contents of JSON strings out of a buffer into one Arrow column, with their escapes resolved."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.byte_scan import byte_at
from pipelines.algorithms.kernels.compilation import kernel

_BACKSLASH, _LOWER_U = 92, 117
_REPLACEMENT = 0xFFFD

# What the letter after a backslash stands for; a quote, a backslash and a slash stand for themselves.
_ESCAPES = np.arange(256, dtype=np.uint8)
for _letter, _character in (("b", "\b"), ("f", "\f"), ("n", "\n"), ("r", "\r"), ("t", "\t")):
    _ESCAPES[ord(_letter)] = ord(_character)


def text_column(
    buffer: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64], escaped: npt.NDArray[np.bool_] | None = None
) -> pa.StringArray:
    """Return the texts between the quotes of valid JSON strings, given by (start, end), as a column.

    Only those that are `escaped`, if any, are looked at for escapes. Half a character (`\\ud83d` alone) becomes U+FFFD.
    """
    if escaped is None:
        escaped = np.zeros(len(spans), np.bool_)
    offsets = np.zeros(len(spans) + 1, np.int32)
    # No escape is shorter than what it stands for.
    texts = np.empty(int((spans[:, 1] - spans[:, 0]).sum()), np.uint8)
    size = _copy_texts(buffer, spans, escaped, texts, offsets)
    return pa.StringArray.from_buffers(len(spans), pa.py_buffer(offsets), pa.py_buffer(texts[:size]))


@kernel
def _copy_texts(buffer, spans, escaped, texts, offsets):  # type: ignore[no-untyped-def]
    size = 0
    for number in range(len(spans)):
        start, stop = spans[number, 0], spans[number, 1]
        if escaped[number]:
            size = _copy_unescaped(buffer, start, stop, texts, size)
        else:
            for at in range(start, stop):
                texts[size] = byte_at(buffer, at)
                size += 1
        offsets[number + 1] = size
    return size


@kernel
def _copy_unescaped(buffer, at, stop, texts, size):  # type: ignore[no-untyped-def]
    while at < stop:
        byte = byte_at(buffer, at)
        if byte != _BACKSLASH:
            texts[size] = byte
            size += 1
            at += 1
        elif byte_at(buffer, at + 1) != _LOWER_U:
            texts[size] = _ESCAPES[byte_at(buffer, at + 1)]
            size += 1
            at += 2
        else:
            code = _code_unit(buffer, at)
            at += 6
            if 0xD800 <= code < 0xDC00 and byte_at(buffer, at) == _BACKSLASH and byte_at(buffer, at + 1) == _LOWER_U:
                second = _code_unit(buffer, at)
                if 0xDC00 <= second < 0xE000:
                    code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
                    at += 6
            size = _put_character(texts, size, code if not 0xD800 <= code < 0xE000 else _REPLACEMENT)
    return size


@kernel
def _code_unit(buffer, at):  # type: ignore[no-untyped-def]
    """Return the number that `\\uXXXX` at a position spells."""
    code = np.int64(0)
    for step in range(2, 6):
        digit = np.int64(byte_at(buffer, at + step)) | 32
        code = code << 4 | (digit - 48 if digit < 97 else digit - 87)
    return code


@kernel
def _put_character(texts, size, code):  # type: ignore[no-untyped-def]
    """Write a character as UTF-8 and return where the next one goes."""
    if code < 0x80:
        texts[size] = code
        return size + 1
    if code < 0x800:
        texts[size] = 0xC0 | code >> 6
        texts[size + 1] = 0x80 | code & 0x3F
        return size + 2
    if code < 0x10000:
        texts[size] = 0xE0 | code >> 12
        texts[size + 1] = 0x80 | code >> 6 & 0x3F
        texts[size + 2] = 0x80 | code & 0x3F
        return size + 3
    texts[size] = 0xF0 | code >> 18
    texts[size + 1] = 0x80 | code >> 12 & 0x3F
    texts[size + 2] = 0x80 | code >> 6 & 0x3F
    texts[size + 3] = 0x80 | code & 0x3F
    return size + 4
