"""The exact index of n-grams against a dictionary of strings."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_ngrams import text_ngrams, words
from test_ngram_hashing import COLUMNS, NORMALIZATIONS, column_of

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import (
    Examples,
    IndexArrays,
    NgramIndex,
    build_index,
    ngram_texts,
    scan,
)
from pipelines.algorithms.ngrams.word_scan import CHUNK_BYTES, WHOLE_HASH
from pipelines.algorithms.ngrams.words import Normalization

# Few words, so that n-grams are found; some of a length at which words are compared in other ways.
_WORDS = st.sampled_from(["a", "b", "A'b", "ΑΣ", "É", "12345678", "a234567890123456", "x" * 17, "’s", "İ", "\n"])
_EXAMPLES = st.lists(st.lists(_WORDS, max_size=12).map(" ".join), max_size=6)
# All of the hash; its last 2 bits; its first 2 bits; none.
_MASKS = st.sampled_from([WHOLE_HASH, 3, 3 << 62, 0])


def _built(
    texts: Sequence[str], n: int, normalization: Normalization, mask: int = WHOLE_HASH, batch: int = 2
) -> tuple[NgramIndex, Examples]:
    batches = (column_of(texts[start : start + batch]) for start in range(0, len(texts), batch))
    return build_index(batches, n, normalization, mask=mask)


def _check_examples(index: NgramIndex, examples: Examples, texts: Sequence[str], normalization: Normalization) -> None:
    texts_of_ids = ngram_texts(index, np.arange(len(index.arrays.hashes))).to_pylist()
    distinct: set[str] = set()
    assert examples.words.tolist() == np.cumsum([0, *(len(words(text, normalization)) for text in texts)]).tolist()
    for text, start, end in zip(texts, examples.words[:-1], examples.words[1:], strict=True):
        ids = examples.ids[start:end]
        found = [(position, texts_of_ids[id]) for position, id in enumerate(ids.tolist()) if id >= 0]
        assert found == text_ngrams(text, index.n, normalization)
        distinct.update(ngram for _, ngram in found)
    assert len(texts_of_ids) == len(set(texts_of_ids))
    assert set(texts_of_ids) == distinct


def _check_scan(index: NgramIndex, texts: Sequence[str], known: set[str], normalization: Normalization) -> int:
    n = index.n
    hits = scan(index, *column_of(texts))
    expected = []
    for number, text in enumerate(texts):
        for position, ngram in text_ngrams(text, n, normalization):
            if ngram in known:
                expected.append((number, position, ngram))
    ngrams = ngram_texts(index, hits.ids).to_pylist()
    assert list(zip(hits.documents.tolist(), hits.words.tolist(), ngrams, strict=True)) == expected
    assert hits.ngram_counts.tolist() == [len(text_ngrams(text, n, normalization)) for text in texts]
    return len(expected)


@settings(deadline=None, max_examples=150)
@given(_EXAMPLES, _EXAMPLES, st.integers(1, 13), st.sampled_from(NORMALIZATIONS), _MASKS)
@example(["a b", "b a"], ["a b a"], 2, NORMALIZATIONS[0], 0)
@example([], ["a"], 1, NORMALIZATIONS[0], WHOLE_HASH)
@example(["a"], [], 1, NORMALIZATIONS[0], WHOLE_HASH)
def test_scan_matches_a_dictionary(
    examples: list[str], texts: list[str], n: int, normalization: Normalization, mask: int
) -> None:
    index, places = _built(examples, n, normalization, mask)
    _check_examples(index, places, examples, normalization)
    known = {ngram for text in examples for _, ngram in text_ngrams(text, n, normalization)}
    _check_scan(index, texts + examples, known, normalization)


@settings(deadline=None, max_examples=100)
@given(COLUMNS, COLUMNS, st.integers(1, 3), st.sampled_from(NORMALIZATIONS), _MASKS)
def test_scan_of_any_text_matches_a_dictionary(
    examples: list[str], texts: list[str], n: int, normalization: Normalization, mask: int
) -> None:
    index, places = _built(examples, n, normalization, mask)
    _check_examples(index, places, examples, normalization)
    known = {ngram for text in examples for _, ngram in text_ngrams(text, n, normalization)}
    _check_scan(index, [*texts, *examples, " ".join(examples)], known, normalization)


def test_ngrams_with_equal_hashes_are_distinguished() -> None:
    examples = ["one two three four five", "six seven", "two three one"]
    index, _ = _built(examples, 2, NORMALIZATIONS[0], mask=0)
    assert set(index.arrays.hashes.tolist()) == {0}
    assert len(index.arrays.hashes) == 6
    known = {ngram for text in examples for _, ngram in text_ngrams(text, 2)}
    # Each pair of words has the hash of all: 6 of the pairs here are known, and no other is reported.
    every_pair = [
        f"{left} {right}"
        for left in "one two three four five six seven".split()
        for right in "one two three four five six seven".split()
    ]
    assert _check_scan(index, every_pair, known, NORMALIZATIONS[0]) == 6


@settings(deadline=None, max_examples=50)
@given(_EXAMPLES, st.integers(1, 4), st.integers(1, 6))
def test_the_index_does_not_depend_on_the_batches(examples: list[str], n: int, batch: int) -> None:
    one, other = (_built(examples, n, NORMALIZATIONS[1], batch=size) for size in (batch, max(1, len(examples))))
    for left, right in zip((*one[0].arrays, *one[1]), (*other[0].arrays, *other[1]), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


@pytest.mark.parametrize("normalization", [NORMALIZATIONS[0], NORMALIZATIONS[-1]])
def test_long_texts_are_scanned_in_pieces(normalization: Normalization) -> None:
    text = " ".join(f"Word{number % 5000}'s É" + "\n" * (number % 7 == 0) for number in range(30_000))
    assert len(text.encode()) > 2 * CHUNK_BYTES
    examples = [text[start : start + 100] for start in range(0, len(text), 20_000)]
    index, places = _built([*examples, text], 5, normalization)
    _check_examples(index, places, [*examples, text], normalization)
    index, _ = _built(examples, 5, normalization)
    known = {ngram for example in examples for _, ngram in text_ngrams(example, 5, normalization)}
    assert _check_scan(index, ["word1 word2", text, text[:999]], known, normalization) > 50


def test_a_stored_index_is_memory_mapped(tmp_path: Path) -> None:
    index, _ = _built(["the quick brown fox"], 2, NORMALIZATIONS[4])
    for name, array in index.arrays._asdict().items():
        np.save(tmp_path / f"{name}.npy", array)
    arrays = IndexArrays(*(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in IndexArrays._fields))
    mapped = index._replace(arrays=arrays)
    hits = scan(mapped, *column_of(["A quick, brown one"]))
    assert ngram_texts(mapped, hits.ids).to_pylist() == ["quick brown"]


def test_columns_with_64_bit_offsets_give_the_same_result() -> None:
    data, starts = text_arrays(pa.array(["a b c", "b c d"]))
    index, _ = build_index([(data, starts.astype(np.int64))], 2)
    assert scan(index, data, starts.astype(np.int64)).ids.tolist() == scan(index, data, starts).ids.tolist()
    assert len(index.arrays.hashes) == 3


def _benchmarks(shared_data: Path) -> list[str]:
    folder = shared_data / "benchmarks"
    texts = [
        line
        for name in ("wikitext2-test", "tinyshakespeare")
        for line in (folder / f"{name}.txt").read_text().split("\n")
    ]
    questions = (folder / "gsm8k-test.jsonl").read_text().splitlines()
    return texts + [json.loads(line)[field] for line in questions for field in ("question", "answer")]


def _real_texts(shared_data: Path) -> list[str]:
    with (shared_data / "text" / "docs.jsonl.zst").open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read(4_000_000).decode(errors="ignore")
    return [json.loads(line)["text"] for line in text.split("\n")[:-1]]


@pytest.mark.parametrize(("n", "normalization"), [(8, NORMALIZATIONS[0]), (4, NORMALIZATIONS[-1])])
def test_real_texts_and_benchmarks_match_a_dictionary(shared_data: Path, n: int, normalization: Normalization) -> None:
    # Every sixth example: the dictionary takes most of the time.
    examples, texts = _benchmarks(shared_data)[::6], _real_texts(shared_data)
    index, places = _built(examples, n, normalization, batch=1000)
    _check_examples(index, places, examples, normalization)
    known = {ngram for text in examples for _, ngram in text_ngrams(text, n, normalization)}
    assert len(index.arrays.hashes) == len(known)
    assert _check_scan(index, texts[:200] + examples[:1000], known, normalization) > 500


def test_threads_scan_concurrently(shared_data: Path) -> None:
    index, _ = _built(_benchmarks(shared_data)[:3000], 4, NORMALIZATIONS[0], batch=1000)
    column = column_of(_real_texts(shared_data)[:100])
    expected, found = scan(index, *column), []
    threads = [threading.Thread(target=lambda: found.append(scan(index, *column))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for hits in found:
        for left, right in zip(hits, expected, strict=True):
            np.testing.assert_array_equal(left, right)
