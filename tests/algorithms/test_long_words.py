"""Words longer than a piece, and that no store leaves the arrays: the kernels check none of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_ngrams import ngrams, segments
from test_ngram_hashing import NORMALIZATIONS, TEXTS, column_of

from pipelines.algorithms.kernels.compilation import as_read_only
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.index import build_index, ngram_texts, scan
from pipelines.algorithms.ngrams.word_bits import reading_of
from pipelines.algorithms.ngrams.word_scan import CHUNK_BYTES, ChunkArrays, find_ngrams, new_arrays, new_totals
from pipelines.algorithms.ngrams.words import Normalization

# One byte a character; letters that grow from 2 bytes to 3; words that "drop" makes one.
_UNITS = ["x", "Ⱥ", "Ab'9’"]


def _long(unit: str, size_bytes: int) -> str:
    return unit * (size_bytes // len(unit.encode()))


def _short(count: int) -> str:
    return " ".join(f"w{number % 40}" + "\n" * (number % 11 == 10) for number in range(count))


def _aliased(text: str, normalization: Normalization) -> list[list[str]]:
    """Return the text's runs of words, each word as a number, so that n-grams of long words are short."""
    numbers: dict[str, str] = {}
    return [[numbers.setdefault(word, str(len(numbers))) for word in run] for run in segments(text, normalization)]


def _check_text(text: str, n: int, normalization: Normalization) -> None:
    """Index a text and find all of its n-grams in it, as the plain reference has them."""
    index, examples = build_index([column_of([text])], n, normalization)
    hits = scan(index, *column_of([text]))
    runs = _aliased(text, normalization)
    expected, firsts = [], []
    for run, first in zip(runs, np.cumsum([0, *map(len, runs)]), strict=False):
        expected += list(ngrams(run, n))
        firsts += [int(first) + step for step in range(len(run) - n + 1)]
    assert hits.words.tolist() == firsts
    assert hits.ids.tolist() == examples.ids[examples.ids >= 0].tolist()
    # Equal n-grams have the same id, and others another.
    assert len({*zip(expected, hits.ids.tolist(), strict=True)}) == len(set(expected)) == len(index.arrays.hashes)
    words = [word for run in segments(text, normalization) for word in run]
    for number in range(0, len(firsts), 1 + len(firsts) // 5):
        [ngram] = ngram_texts(index, hits.ids[number : number + 1]).to_pylist()
        assert ngram == " ".join(words[firsts[number] : firsts[number] + n])
    assert len(text_ngram_hashes(*column_of([text]), n, normalization).hashes) == len(firsts)


# Below one chunk of 128 KiB, just above one, and above two.
@pytest.mark.parametrize("n", [1, 8, 100])
@pytest.mark.parametrize("kilobytes", [10, 140, 270])
def test_words_as_long_as_pieces_among_short_ones(kilobytes: int, n: int) -> None:
    for number, normalization in enumerate(NORMALIZATIONS):
        unit = _UNITS[(number + n) % 3 if normalization.letters == "unicode" else 0]
        word = _long(unit, 1000 * kilobytes)
        _check_text(f"{_short(120)} {word} {_short(30)}. {word}y {_short(110)}", n, normalization)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("before", [-65_000, -9, -1, 0, 1, 9])
def test_long_words_that_start_or_end_near_the_end_of_a_piece(before: int, normalization: Normalization) -> None:
    for n, unit in ((2, "x"), (8, "Ⱥ")):
        word, start = _long(unit, 65_000), CHUNK_BYTES + before
        filler = "ab " * 1000 + " " * (start - 3000)
        _check_text(f"{filler}{word} a b {word}{unit} c {word} {'de ' * 1000}", n, normalization)


@pytest.mark.parametrize(("n", "size_bytes", "count"), [(8, 65_000, 20), (100, 65_000, 140), (8, 140_000, 12)])
def test_a_text_of_only_long_words(n: int, size_bytes: int, count: int) -> None:
    text = " ".join(_long(chr(ord("a") + number % 26), size_bytes) for number in range(count))
    _check_text(text, n, NORMALIZATIONS[0])


# A write past the end of an array shows at the latest when the array next to it is given back.
_SCANS = """
    import numpy as np
    import pyarrow as pa
    from pipelines.algorithms.ngrams.hashing import text_ngram_hashes, word_hashes
    from pipelines.algorithms.ngrams.index import build_index, scan
    from pipelines.algorithms.columns import text_arrays

    texts = ["7" * 140_000 + " " + "ab " * 60_000]
    texts += [" ".join(letter * size for letter in "abcdefghijklmno") for size in (10_000, 65_000, 140_000)]
    texts += [text.replace("a", "Ⱥ") for text in texts]
    for n in (2, 8, 100):
        index, _ = build_index((text_arrays(pa.array([text])) for text in texts), n)
        for _ in range(3):
            for text in texts:
                column = text_arrays(pa.array([text]))
                scan(index, *column), word_hashes(*column), text_ngram_hashes(*column, n)
    print("done")
"""


def test_the_heap_is_intact_after_long_words() -> None:
    script = textwrap.dedent(_SCANS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


_GUARD_BYTES = 4096


def _guarded(size: int, kind: type[np.generic]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return bytes of which all are 0xA5, and an array of so many entries between guards on both sides."""
    around = np.full(size * np.dtype(kind).itemsize + 2 * _GUARD_BYTES, 0xA5, np.uint8)
    return around, around[_GUARD_BYTES : len(around) - _GUARD_BYTES].view(kind)


@settings(deadline=None, max_examples=200)
@given(st.lists(TEXTS, max_size=4), st.integers(1, 70), st.sampled_from(NORMALIZATIONS), st.sampled_from([0, 7]))
@example(["Ⱥ"], 1, NORMALIZATIONS[0], 0)
@example(["Ⱥ"], 200, NORMALIZATIONS[0], 7)
@example(["ȺİȺİ"], 200, NORMALIZATIONS[0], 7)
@example(["İ"], 200, NORMALIZATIONS[1], 7)
@example(["a ", "a"], 200, NORMALIZATIONS[0], 7)
@example(["a\n"], 200, NORMALIZATIONS[3], 7)
def test_words_stay_within_the_computed_buffers(
    texts: list[str], times: int, normalization: Normalization, kept: int
) -> None:
    texts = [text * times for text in texts]
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    starts = np.cumsum([0, *(len(text.encode()) for text in texts)])
    kept_bytes = 10_000 * kept
    plain = new_arrays(len(data), len(texts), kept, kept_bytes)
    guarded = [_guarded(len(array), array.dtype.type) for array in plain[:-1]]
    arrays = ChunkArrays(*(array for _, array in guarded), plain.bits)
    arrays.normal_starts[kept] = kept_bytes
    span = (0, len(texts), 0, len(data))
    reading, totals = reading_of(normalization), new_totals(starts)
    words, *_ = find_ngrams(
        as_read_only(data), as_read_only(starts), *span, reading, 1, np.uint64(0), arrays, kept, totals
    )
    for around, _ in guarded:
        assert (around[:_GUARD_BYTES] == 0xA5).all()
        assert (around[-_GUARD_BYTES:] == 0xA5).all()
    expected = [word for text in texts for run in segments(text, normalization) for word in run]
    assert words == kept + len(expected)
    end = arrays.normal_starts[words]
    assert arrays.normal[kept_bytes:end].tobytes() == "".join(f"{word} " for word in expected).encode()
