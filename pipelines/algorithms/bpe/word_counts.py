"""Counts the words of a text: the pieces that GPT-2's split leaves, across which no merge goes (paper, section 2.2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines.algorithms.bpe.word_table import WordTable
from pipelines.algorithms.kernels.compilation import kernel

# The split of GPT-2's own code. A word is letters, digits, or other characters that are no white space, each with one
# space before it if there is one; or white space, which leaves its last character to the word behind it.
GPT2_SPLIT = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def count_words(texts: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """Return each word of the texts, which are UTF-8, with how often it occurs, in the order of the first of each."""
    table = WordTable()
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    table.add(np.frombuffer(b"".join(texts), np.uint8), starts, np.zeros(len(texts), np.uint8))
    data, begins = table.column()
    words = [data[begin:end].tobytes() for begin, end in itertools.pairwise(begins.tolist())]
    return list(zip(words, table.counts()[:, 0].tolist(), strict=True))


def bucket_of_words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], buckets: int) -> npt.NDArray[np.int32]:
    """Return for each word `data[starts[i]:starts[i + 1]]` one of so many buckets, by a hash of its bytes (FNV-1a)."""
    chosen = np.empty(len(starts) - 1, np.int32)
    _assign_buckets(data, starts, buckets, chosen)
    return chosen


@kernel
def _assign_buckets(data, starts, buckets, chosen):  # type: ignore[no-untyped-def]
    for word in range(len(chosen)):
        hashed = np.uint64(0xCBF29CE484222325)
        for at in range(starts[word], starts[word + 1]):
            hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        chosen[word] = np.int32((hashed >> np.uint64(32)) % np.uint64(buckets))
