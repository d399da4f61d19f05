"""Characters of text, by their bytes in UTF-8: which are part of words, white, invisible, or signs that are counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.algorithms.kernels.compilation import helper

# Kinds of signs: those that end sentences, commas, others that are counted.
_SENTENCE, _COMMA, _SIGN = 1, 2, 3


@helper
def decode_reference(html: Any, position: Any, end: Any) -> Any:
    """Return the character of `&amp;`, `&lt;`, `&gt;` or `&nbsp;` (a space), and the position after it."""
    if position + 2 < end:
        first, second = html[position], html[position + 1]
        if first == 97 and second == 109:
            return np.int64(38), position + 4
        if first == 108 and second == 116:
            return np.int64(60), position + 3
        if first == 103 and second == 116:
            return np.int64(62), position + 3
        if first == 110 and second == 98:
            return np.int64(32), position + 5
    return np.int64(38), position


@helper
def is_word_byte(byte: Any) -> Any:
    """Return whether an ASCII character is a letter, a digit or an underscore."""
    return 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57 or byte == 95


@helper
def is_small_or_digit(byte: Any) -> Any:
    """Return whether a character is a small ASCII letter or a digit."""
    return 97 <= byte <= 122 or 48 <= byte <= 57


@helper
def is_letter(first: Any, second: Any, third: Any) -> Any:
    """Return whether a character outside ASCII is part of a word; punctuation and symbols are not."""
    if first == 194:
        return second == 170 or second == 181 or second == 186
    if first == 195:
        return second != 151 and second != 183
    if first == 226:
        return not (second <= 0x81 or 0x86 <= second <= 0xAF)
    if first == 227:
        return second != 128
    if first == 239 and second == 188:  # full-width forms
        return 0x90 <= third <= 0x99 or 0xA1 <= third <= 0xBA
    return not (first == 239 and second == 187 and third == 191)


@helper
def is_white_space(first: Any, second: Any, third: Any) -> Any:
    """Return whether a character outside ASCII is white space, or of an icon font (in the private use area)."""
    if first == 226:
        return second == 128 and (third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF)
    return (
        (first == 194 and second == 160)
        or (first == 227 and second == 128 and third == 128)
        or first == 238
        or (first == 239 and second <= 0xA3)
    )


@helper
def is_invisible(first: Any, second: Any, third: Any, last: Any) -> Any:
    """Return whether a character is not needed: soft hyphen, zero width space, direction mark, byte-order mark.

    Joiners stay after a character (by its last byte) outside ASCII: in emoji, and in scripts that need them.
    """
    if first == 226 and second == 128:
        return (
            third == 0x8B
            or third == 0x8E
            or third == 0x8F
            or 0xAA <= third <= 0xAE
            or (third >> 1 == 0x46 and last < 128)
        )
    return (
        (first == 194 and second == 173)
        or (first == 226 and second == 129 and 0xA0 <= third <= 0xAF)
        or (first == 239 and second == 187 and third == 191)
    )


@helper
def ascii_sign_kind(byte: Any) -> Any:
    """Return the kind of sign of an ASCII character, or 0."""
    if byte == 46 or byte == 33 or byte == 63:
        return _SENTENCE
    if byte == 44 or byte == 59:
        return _COMMA
    return _SIGN if byte == 124 or byte == 35 or byte == 36 or byte == 62 or byte == 47 else 0


@helper
def sign_kind(first: Any, second: Any, third: Any) -> Any:
    """Return the kind of sign of a character outside ASCII, or 0."""
    if (first == 227 and second == 128) or (first == 239 and second == 188):
        if third == 130 or third == 159 or (third == 129 and first == 239):
            return _SENTENCE
        return _COMMA if third == 129 or third == 140 else 0
    return _SIGN if first == 194 or first == 226 else 0
