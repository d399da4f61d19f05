"""Counts the words of a text: the pieces that GPT-2's split leaves, across which no merge goes (paper, section 2.2)."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.compiled import kernel

# The split of GPT-2's own code. A word is letters, digits, or other characters that are no white space, each with one
# space before it if there is one; or white space, which leaves its last character to the word behind it.
GPT2_SPLIT = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

# In no UTF-8 text is there such a byte, so it divides texts without a look at them.
_BETWEEN_TEXTS = b"\xff"


def count_words(texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """Return each word of the texts, which are UTF-8, with how often it occurs, in any order.

    By gigatoken, where it is installed: a private function of it, which a test holds equal to `count_words_plainly`.
    """
    try:
        from gigatoken.gigatoken_rs import pretokenized_counts
    except ImportError:
        return count_words_plainly(texts)
    joined = _BETWEEN_TEXTS.join(texts)
    if not joined:
        return []
    with _without_standard_error():
        return pretokenized_counts(joined, _BETWEEN_TEXTS)


def count_words_plainly(texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """Do the same by the `regex` library, at a twentieth of the speed."""
    find = _compiled_split().findall
    counts = Counter(word for text in texts for word in find(text.decode()))
    return [(word.encode(), count) for word, count in counts.items()]


def bucket_of_words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], buckets: int) -> npt.NDArray[np.int32]:
    """Return for each word `data[starts[i]:starts[i + 1]]` one of so many buckets, by a hash of its bytes (FNV-1a)."""
    return _bucket_of_words(data, starts, buckets)  # type: ignore[no-any-return]


@kernel
def _bucket_of_words(data, starts, buckets):  # type: ignore[no-untyped-def]
    chosen = np.empty(len(starts) - 1, np.int32)
    for word in range(len(chosen)):
        hashed = np.uint64(0xCBF29CE484222325)
        for at in range(starts[word], starts[word + 1]):
            hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        chosen[word] = np.int32((hashed >> np.uint64(32)) % np.uint64(buckets))
    return chosen


@functools.cache
def _compiled_split() -> Any:
    import regex

    return regex.compile(GPT2_SPLIT)


@contextlib.contextmanager
def _without_standard_error() -> Iterator[None]:
    """Keep from the terminal what native code writes to standard error: gigatoken's counter says how long it took.

    That is two lines, which a pipe holds without a reader. What the counter raises is raised as ever.
    """
    try:
        kept = os.dup(2)
    except OSError:  # the user closed it
        yield
        return
    unread, nowhere = os.pipe()
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        for descriptor in (kept, nowhere, unread):
            os.close(descriptor)
