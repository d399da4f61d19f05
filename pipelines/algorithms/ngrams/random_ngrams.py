"""Text of words that no corpus holds, to ask a filter of n-grams how often it finds what is not there.

A word is 12 letters and digits that stand for 60 random bits, or a multiple of that. It is one word by every
normalization. An n-gram of such words is in a corpus with the chance that someone guessed all of its bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.kernels.splitmix import STEP, mixed

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz234567", np.uint8)
_BITS = np.uint64(5)
_LETTER = np.uint64(31)
_IN_A_MIXTURE = 12
_SPACE = ord(" ")
# An n-gram of one word gets as many random bits as one of two.
_LEAST_MIXTURES = 2


def made_up_text(first: int, ngrams: int, n: int, seed: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of a text of the n-grams with the numbers from `first` on, all of them different.

    The next text begins with the words that the last n-gram of this one ends with, so any texts make the same n-grams.
    """
    mixtures = max(1, -(-_LEAST_MIXTURES // n))
    words = ngrams + n - 1
    text = np.empty(words * (mixtures * _IN_A_MIXTURE + 1), np.uint8)
    _fill(np.uint64(first), words, mixtures, np.uint64(seed), _LETTERS, text)
    return text


@kernel
def _fill(first, words, mixtures, seed, letters, text):  # type: ignore[no-untyped-def]
    number = mixed(seed) + first * np.uint64(mixtures) * STEP
    at = 0
    for _ in range(words):
        for _ in range(mixtures):
            number += STEP
            bits = mixed(number)
            for _ in range(_IN_A_MIXTURE):
                text[at] = letters[bits & _LETTER]
                bits >>= _BITS
                at += 1
        text[at] = _SPACE
        at += 1
