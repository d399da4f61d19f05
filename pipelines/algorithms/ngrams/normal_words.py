"""The words of texts as the overlap audit normalizes them, and where they are in the texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import Numbers, new_totals, read_ngrams
from pipelines.algorithms.ngrams.words import DEFAULT


class NormalText(NamedTuple):
    """The words of a text, a space after each of them; `starts` and `ends` are their bytes in the text."""

    words: str
    starts: Numbers
    ends: Numbers


def normalize_texts(texts: pa.Array) -> list[NormalText]:
    """Return the words of a column of texts without nulls."""
    data, starts = text_arrays(texts)
    totals = new_totals(starts)
    # Where each word ends among all words, with its space; and where it begins and ends in the data.
    columns: list[npt.NDArray[np.int64]] = [np.zeros((3, 1), np.int64)]
    words: list[bytes] = []
    size = 0
    for chunk in read_ngrams(data, starts, 1, reading_of(DEFAULT), totals):
        arrays, count = chunk.arrays, chunk.words
        normal_ends = arrays.normal_starts[1 : count + 1] + size
        columns.append(np.stack([normal_ends, arrays.starts[:count], arrays.ends[:count]]))
        words.append(arrays.normal[: normal_ends[-1] - size if count else 0].tobytes())
        size += len(words[-1])
    all_words, (normal_ends, begins, ends) = b"".join(words), np.concatenate(columns, axis=1)
    borders = zip(totals.words[:-1].tolist(), totals.words[1:].tolist(), starts[:-1].tolist(), strict=True)
    return [
        NormalText(
            all_words[normal_ends[first] : normal_ends[last]].decode(),
            begins[first + 1 : last + 1] - start,
            ends[first + 1 : last + 1] - start,
        )
        for first, last, start in borders
    ]
