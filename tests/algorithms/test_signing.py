"""Shingles, signatures and band keys against plain Python and datasketch."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_ngrams import text_ngrams
from test_ngram_hashing import ngram_hash
from test_normal_text import COLUMNS, array_of, reference

from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.minhash.pairing import agreeing
from pipelines.algorithms.minhash.signing import (
    EMPTY,
    SHINGLING,
    Values,
    band_keys,
    candidate_probability,
    choose_bands,
    lower_values,
    new_values,
    shingle_hashes_of,
    sign,
    sorted_sets,
)


def shingles_of(text: str, ngram: int) -> list[str]:
    return [shingle for _, shingle in text_ngrams(normalize("NFC", text), ngram, SHINGLING)]


def hashes_of(text: str, ngram: int) -> list[int]:
    return [ngram_hash(shingle.split(" ")) for shingle in shingles_of(text, ngram)]


def reference_values(text: str, ngram: int, num_perm: int, seed: int) -> list[int]:
    minhash = MinHash(num_perm, seed, hashfunc=int, scheme="affine32")
    minhash.update_batch([hash & 0xFFFFFFFF for hash in hashes_of(text, ngram)])
    values: list[int] = minhash.hashvalues.tolist()
    return values


def values_of(hashes: np.ndarray, starts: np.ndarray, num_perm: int, seed: int) -> Values:
    values = new_values(len(starts) - 1, num_perm)
    lower_values(values, hashes, starts, num_perm, seed)
    return values[:, :num_perm]


@kernel
def _agreeing(left, right, result):
    result[0] = agreeing(left, right)


@settings(deadline=None, max_examples=200)
@given(COLUMNS, st.integers(1, 7), st.sampled_from([pa.string(), pa.large_string()]))
def test_shingles_match_the_plain_reference(texts, ngram, kind):
    hashes, starts = shingle_hashes_of(array_of(texts, kind), ngram)
    expected = [hashes_of(text, ngram) for text in texts]
    assert [hashes[start:end].tolist() for start, end in pairwise(starts.tolist())] == expected


@pytest.mark.parametrize(
    ("text", "shingles"),
    [
        ("The river, the town", ["the river the", "river the town"]),
        ("Two words", ["two words"]),
        ("... !?", []),
        ("我們今天去", ["我 們 今", "們 今 天", "今 天 去"]),
        ("東京タワー", ["東 京 タ", "京 タ ワ", "タ ワ ー"]),
        ("ไทย OK", ["ไ ท ย", "ท ย ok"]),
        ("大学", ["大 学"]),
        ("cafe\u0301 か\u3099", ["café が"]),
    ],
)
def test_shingles_of_scripts_with_and_without_spaces(text, shingles):
    assert shingles_of(text, 3) == shingles
    hashes, starts = shingle_hashes_of(pa.array([text]), 3)
    assert hashes.tolist() == hashes_of(text, 3)
    assert starts.tolist() == [0, len(shingles)]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("我們今天討論了這個問題，大家都同意明天再繼續開會。", "我們今天討論了這個問題，大家都同意後天再繼續開會。"),
        (
            "明日は朝から雨が降るので、傘を持って出かけてください。",
            "明日は朝から雪が降るので、傘を持って出かけてください。",
        ),
        ("วันนี้อากาศดีมากเราจึงไปเดินเล่นที่สวนสาธารณะ", "วันนี้อากาศดีมากเราจึงไปวิ่งเล่นที่สวนสาธารณะ"),
    ],
)
def test_an_edited_sentence_without_spaces_keeps_most_shingles(text, other):
    left, right = (set(shingles_of(version, 3)) for version in (text, other))
    assert 0.5 < len(left & right) / len(left | right) < 1


@settings(deadline=None, max_examples=100)
@given(COLUMNS, st.integers(1, 5), st.sampled_from([1, 16, 100, 128, 256]), st.integers(0, 5))
def test_signatures_match_datasketch(texts, ngram, num_perm, seed):
    array = pa.array(texts, pa.string())
    signed = sign(array, ngram, num_perm, seed)
    assert signed.values.dtype == np.uint32
    assert signed.values.shape == (len(texts), num_perm)
    assert signed.shingles.tolist() == [len(shingles_of(text, ngram)) for text in texts]
    assert signed.text_hashes.astype("<u8").tobytes() == reference(texts)
    assert signed.values.tolist() == [reference_values(text, ngram, num_perm, seed) for text in texts]
    assert (values_of(*shingle_hashes_of(array, ngram), num_perm, seed) == signed.values).all()


def test_texts_without_words_have_the_largest_values():
    assert (sign(pa.array(["", "?!"]), 5, 32, 1).values == EMPTY).all()


@pytest.mark.slow
def test_a_text_longer_than_a_chunk_has_the_signature_of_all_its_shingles():
    rng = random.Random(1)
    words = [f"w{number}" for number in range(2000)]
    texts = ["short one", " ".join(rng.choice(words) for _ in range(100_000)), "漢字" * 100_000, "last one"]
    signed = sign(pa.array(texts), 5, 64, 1)
    assert signed.values.tolist() == [reference_values(text, 5, 64, 1) for text in texts]
    assert signed.shingles.tolist() == [1, 99_996, 199_996, 1]


# The hashes of all shingles of 8 MB of characters that are words would be 21 MB.
@pytest.mark.parametrize(("unit", "size"), [("word and number, ", 20_000_000), ("漢字", 8_000_000), ("ไทย", 8_000_000)])
def test_a_long_text_needs_a_small_part_of_its_size(unit, size):
    array = pa.array([unit * (size // len(unit.encode()))])
    sign(pa.array([unit]), 5, 128, 1)  # loads what was compiled before
    tracemalloc.start()
    try:
        sign(array, 5, 128, 1)
        assert tracemalloc.get_traced_memory()[1] < 6e6
    finally:
        tracemalloc.stop()


@given(st.lists(st.lists(st.integers(0, 5) | st.integers(0, (1 << 64) - 1), max_size=20), max_size=5))
def test_sets_are_sorted_and_distinct(lists):
    hashes = np.array([hash for one in lists for hash in one], np.uint64)
    starts = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    distinct, ends = sorted_sets(hashes, starts)
    assert [distinct[start:end].tolist() for start, end in pairwise(ends.tolist())] == [
        sorted(set(one)) for one in lists
    ]


@given(st.integers(0, 16).flatmap(lambda size: st.tuples(*[st.binary(min_size=8 * size, max_size=8 * size)] * 2)))
def test_agreeing_counts_equal_bytes(rows):
    result = np.zeros(1, np.int64)
    _agreeing(*(np.frombuffer(row, np.uint8) for row in rows), result)
    assert result[0] == sum(left == right for left, right in zip(*rows, strict=True))


def test_candidates_are_as_frequent_as_the_curve_says():
    rng = random.Random(3)
    bands, rows = choose_bands(128, 0.8)
    for similarity in (0.5, 0.6, 0.7, 0.8, 0.9):
        shared = round(200 * similarity / (1 + similarity))
        hashes = [rng.getrandbits(64) for _ in range(200 * 200)]
        pairs = [hashes[start : start + 200] for start in range(0, len(hashes), 200)]
        sets = [half for pair in pairs for half in (pair[:100], pair[:shared] + pair[100 : 200 - shared])]
        starts = np.arange(0, 100 * len(sets) + 1, 100)
        keys = band_keys(values_of(np.array(sets, np.uint64).ravel(), starts, 128, 1), bands, rows)
        candidates = (keys[::2] == keys[1::2]).any(axis=1).mean()
        expected = candidate_probability(similarity, bands, rows)
        assert abs(candidates - expected) < 4 * (expected * (1 - expected) / 200) ** 0.5 + 0.01


@pytest.mark.parametrize(("bands", "rows"), [(1, 6), (3, 2), (4, 2), (6, 1)])
def test_band_keys_are_equal_for_equal_values_of_the_same_band_only(bands, rows):
    values = np.random.default_rng(1).integers(0, 3, (500, 8), dtype=np.uint32)
    keys = band_keys(values, bands, rows)
    assert keys.shape == (500, bands)
    contents: dict[int, tuple[int, ...]] = {}
    for row, key_row in zip(values.tolist(), keys.tolist(), strict=True):
        for band, key in enumerate(key_row):
            content = (band, *row[band * rows : (band + 1) * rows])
            assert contents.setdefault(key, content) == content
    assert len(contents) == bands * 3**rows if rows < 6 else True


def test_band_keys_spread_evenly():
    values = np.random.default_rng(2).integers(0, 1 << 32, (20_000, 128), dtype=np.uint32)
    keys = band_keys(values, 21, 6).ravel()
    for buckets in (
        np.bincount((keys >> np.uint64(60)).astype(np.int64)),
        np.bincount((keys % np.uint64(16)).astype(np.int64)),
    ):
        assert len(buckets) == 16
        assert abs(buckets / len(keys) * 16 - 1).max() < 0.05
