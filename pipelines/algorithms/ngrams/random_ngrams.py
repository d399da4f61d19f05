"""Random n-grams that no corpus contains, to measure the false-positive rate of an n-gram filter.

A word is 12 letters and digits that encode 60 random bits, or a multiple of that. Every normalization reads it as one
word. A corpus contains an n-gram of such words only if someone guessed all of its bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import helper, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
_BITS = np.uint64(5)
_LETTER = np.uint64(31)
_LETTERS_PER_BLOCK = 12
_SPACE = ord(" ")
# An n-gram of one word gets as many random bits as one of two.
_MIN_BLOCKS = 2

_mixed = helper(mix)


def random_ngram_text(first: int, ngrams: int, n: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of a text of random n-grams, numbered from `first` on and all different.

    Consecutive texts overlap by n - 1 words, so the n-grams do not depend on how they are split into texts.
    """
    blocks = max(1, -(-_MIN_BLOCKS // n))
    words = ngrams + n - 1
    text = np.empty(words * (blocks * _LETTERS_PER_BLOCK + 1), np.uint8)
    _fill(np.uint64(first), words, blocks, np.uint64(seed), _LETTERS, text)
    return text


@kernel
def _fill(first, words, blocks, seed, letters, text):  # type: ignore[no-untyped-def]
    number = _mixed(seed) + first * np.uint64(blocks) * STEP
    at = 0
    for _ in range(words):
        for _ in range(blocks):
            number += STEP
            bits = _mixed(number)
            for _ in range(_LETTERS_PER_BLOCK):
                text[at] = letters[bits & _LETTER]
                bits >>= _BITS
                at += 1
        text[at] = _SPACE
        at += 1
