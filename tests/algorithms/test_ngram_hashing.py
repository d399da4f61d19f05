"""Hashes of words and n-grams straight from bytes, against plain Python: words, spans, hashes and layout alike."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_ngrams import segments, text_ngrams, word_spans, words

from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams import hashing
from pipelines.algorithms.ngrams.hashing import Words, text_ngram_hashes, word_hashes
from pipelines.algorithms.ngrams.word_scan import CHUNK_BYTES, SEED, SLACK, room_for
from pipelines.algorithms.ngrams.words import Normalization, Shingling

_64 = (1 << 64) - 1

NORMALIZATIONS = [
    Normalization(*options) for options in itertools.product(("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
]
SHINGLINGS = [Shingling(*options) for options in itertools.product(("split", "drop"), ("unicode", "ascii"))]

# Sigma among letters with and without case, marks and signs that are passed over; apostrophes; İ; growing letters;
# letters and marks of scripts without spaces.
_ODD = st.text(
    st.sampled_from(
        "aBZ09Σσς'’’' .·:\u00ad\u0301\u0307İıΑßẞǅȺﬁनी漢٣½ⅣⓐKÅ\u2126𐐀𝐀🙂\n\r\u2028_ʰ\u0345\U000e0001"
        "漢々〆〇かゟカーﾊﾞ・。กัๆลาກកខ្မကမ်ཀ་𠀀𛀀"
    ),
    max_size=40,
)
_LONG = st.lists(st.text(st.sampled_from("abCΣé'’İ1"), max_size=40), max_size=6).map(" ".join)
TEXTS = st.one_of(st.text(max_size=60), _ODD, _LONG, st.text(st.characters(max_codepoint=0x7F), max_size=150))
COLUMNS = st.lists(TEXTS, max_size=6)


def word_hash(word: str) -> int:
    """The hash of a word, 16 bytes of it at a time."""
    text = word.encode()
    state = SEED
    for start in range(0, len(text), 16):
        first = int.from_bytes(text[start : start + 8], "little")
        second = int.from_bytes(text[start + 8 : start + 16], "little")
        state = (state ^ first) * 0x9E3779B97F4A7C15 & _64
        state = ((state ^ state >> 32) + second * 0xC2B2AE3D27D4EB4F) * 0xD6E8FEB86659FD93 & _64
        state ^= state >> 29
    return state


def ngram_hash(ngram: Sequence[str]) -> int:
    """The hash of some words: a polynomial of their hashes, mixed."""
    total = 0
    for word in ngram:
        total = (total * 0xD1342543DE82EF95 + word_hash(word)) & _64
    total = (total ^ total >> 32) * 0xFF51AFD7ED558CCD & _64
    total = (total ^ total >> 32) * 0xC4CEB9FE1A85EC53 & _64
    return total ^ total >> 32


def _trigram_hashes(word_hashes: Sequence[int]) -> npt.NDArray[np.uint64]:
    """What `ngram_hash` returns for each three words in a row, from their hashes."""
    base, shift = np.uint64(0xD1342543DE82EF95), np.uint64(32)
    words = np.array(word_hashes, np.uint64)
    total = (words[:-2] * base + words[1:-1]) * base + words[2:]
    total = (total ^ total >> shift) * np.uint64(0xFF51AFD7ED558CCD)
    total = (total ^ total >> shift) * np.uint64(0xC4CEB9FE1A85EC53)
    return total ^ total >> shift


def column_of(texts: Sequence[str]) -> tuple[Any, Any]:
    """A column with other texts before and after, of which a part is taken."""
    return text_arrays(pa.array(["Σ'before", *texts, "aftΣr"], pa.string()).slice(1, len(texts)))


def _expected_words(texts: Sequence[str], normalization: Normalization) -> dict[str, list[int]]:
    expected: dict[str, list[int]] = {"hashes": [], "starts": [], "ends": [], "documents": [0]}
    base = len("Σ'before".encode())
    for text in texts:
        for start, end in word_spans(text, normalization):
            expected["starts"].append(base + len(text[:start].encode()))
            expected["ends"].append(base + len(text[:end].encode()))
        for run in segments(text, normalization):
            expected["hashes"] += [word_hash(word) for word in run]
        expected["documents"].append(len(expected["hashes"]))
        base += len(text.encode())
    return expected


@settings(deadline=None, max_examples=100)
@given(COLUMNS, st.sampled_from(NORMALIZATIONS + SHINGLINGS))
@example(["İİ İx xİ'a a'İ", "'a'b' ’’a’b'c’", "ΑΣ ΑΣ'Α ΑΣ' Σ ΑΣ\n'Β"], NORMALIZATIONS[-1])
@example(
    ["x" * 63 + "Σ", "x" * 63 + "’y", "x" * 62 + "’yy", "x" * 64 + "'y", "é" * 31 + "İ" + "z" * 64],
    NORMALIZATIONS[5],
)
@example([], NORMALIZATIONS[0])
@example(["", "", "a", ""], NORMALIZATIONS[0])
def test_words_match_the_plain_reference(texts: list[str], normalization: Normalization) -> None:
    actual = word_hashes(*column_of(texts), normalization)
    expected = _expected_words(texts, normalization)
    if not texts:
        expected["starts"] = expected["ends"] = []
    assert {field: array.tolist() for field, array in actual._asdict().items()} == expected


@settings(deadline=None, max_examples=100)
@given(COLUMNS, st.sampled_from(NORMALIZATIONS + SHINGLINGS), st.integers(1, 13))
@example(["漢'字 a漢b 'a' 漢’a", "x" * 62 + "漢" + "'y", "x" * 61 + "漢字", "漢" * 50, "one two", ""], SHINGLINGS[2], 2)
def test_ngrams_match_the_plain_reference(texts: list[str], normalization: Normalization, n: int) -> None:
    hashes, documents, first_words, seen = [], [0], [0], 0
    for text in texts:
        hashes += [ngram_hash(ngram.split(" ")) for _, ngram in text_ngrams(text, n, normalization)]
        seen += len(words(text, normalization))
        documents.append(len(hashes))
        first_words.append(seen)
    ngrams = text_ngram_hashes(*column_of(texts), n, normalization)
    assert [array.tolist() for array in ngrams] == [hashes, documents, first_words]


@pytest.mark.parametrize(
    ("normalization", "end"),
    [
        (NORMALIZATIONS[0], 0x20000),
        (NORMALIZATIONS[-1], 0x20000),
        (SHINGLINGS[0], 0x34000),  # with the last ideographs
        pytest.param(NORMALIZATIONS[0], 0x110000, marks=pytest.mark.slow),
        pytest.param(SHINGLINGS[0], 0x110000, marks=pytest.mark.slow),
    ],
)
def test_every_character_is_decoded_as_in_python(normalization: Normalization, end: int) -> None:
    # Between letters, so that it is seen whether it belongs to a word and what it becomes.
    lines = [f"a{chr(code)}b\n" for code in range(end) if not 0xD800 <= code < 0xE000]
    texts = ["".join(lines[start : start + 4096]) for start in range(0, len(lines), 4096)]
    actual = word_hashes(*text_arrays(pa.array(texts)), normalization)
    expected = [words(text, normalization) for text in texts]
    assert np.diff(actual.documents).tolist() == [len(text_words) for text_words in expected]
    distinct = {word: word_hash(word) for text_words in expected for word in text_words}
    assert actual.hashes.tolist() == [distinct[word] for text_words in expected for word in text_words]


def test_sigma_is_lower_cased_as_in_python_next_to_any_character() -> None:
    codes = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    for shape in ("aΣ{}b ", "aΣ{}\n", "{}Σ ", "a{}Σ "):
        text = "".join(map(shape.format, codes))
        expected = [word_hash(word) for word in words(text)]
        assert word_hashes(*text_arrays(pa.array([text]))).hashes.tolist() == expected


@pytest.mark.parametrize(
    "normalization",
    [
        NORMALIZATIONS[0],
        NORMALIZATIONS[-1],
        SHINGLINGS[0],
        *(
            pytest.param(normalization, marks=pytest.mark.slow)
            for normalization in NORMALIZATIONS[1:-1] + SHINGLINGS[1:]
        ),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "Don't stop, ΑΣ! " * 15_000,
        "漢字かな" * 22_000,
        "ไทยລາວ" * 15_000,
        "ខ្មែរမြန်မာབོད་" * 6_000,
        "x" * 270_000 + " y z",
        ("y" * 131_071 + "'") * 3 + "a b c d",
        "abcd\n" * 54_000,
    ],
)
def test_cutting_long_texts_does_not_change_the_hashes(text: str, normalization: Normalization) -> None:
    assert len(text.encode()) > 2 * CHUNK_BYTES
    column = text_arrays(pa.array(["a b c", text, "c d e"]))
    actual = word_hashes(*column, normalization)
    runs = [run for each in ("a b c", text, "c d e") for run in segments(each, normalization)]
    distinct = {word: word_hash(word) for run in runs for word in run}
    assert actual.hashes.tolist() == [distinct[word] for run in runs for word in run]
    ngrams = text_ngram_hashes(*column, 3, normalization)
    expected = [_trigram_hashes([distinct[word] for word in run]) for run in runs if len(run) >= 3]
    np.testing.assert_array_equal(ngrams.hashes, np.concatenate([np.empty(0, np.uint64), *expected]))
    np.testing.assert_array_equal(actual.documents, ngrams.words)


@pytest.mark.parametrize("unit", ["Ⱥ漢", "ȺȺ漢", "1漢", "漢", "a ", "Ⱥ "])
def test_buffers_have_room_for_every_text(unit: str) -> None:
    text = unit * 20_000
    size = len(text.encode())
    expected = words(text, SHINGLINGS[0])
    max_words, max_bytes = room_for(size, 1)
    assert len(expected) < max_words
    assert sum(len(word.encode()) + 1 for word in expected) + SLACK <= max_bytes
    hashes = word_hashes(*text_arrays(pa.array([text])), SHINGLINGS[0]).hashes
    assert hashes.tolist() == [*map({word: word_hash(word) for word in expected}.__getitem__, expected)]


def test_chinese_japanese_and_thai_are_read_by_character() -> None:
    assert words("我們今天", SHINGLINGS[0]) == ["我", "們", "今", "天"]
    assert words("東京タワーへ2回", SHINGLINGS[0]) == ["東", "京", "タ", "ワ", "ー", "へ", "2", "回"]
    assert words("สวัสดี OK", SHINGLINGS[0]) == ["ส", "ว", "ส", "ด", "ok"]
    assert words("한국어 문장", SHINGLINGS[0]) == ["한국어", "문장"]
    assert words("我們今天", NORMALIZATIONS[0]) == ["我們今天"]
    assert [ngram for _, ngram in text_ngrams("我們今天", 3, SHINGLINGS[0])] == ["我 們 今", "們 今 天"]
    assert [ngram for _, ngram in text_ngrams("東京", 3, SHINGLINGS[0])] == ["東 京"]


def test_columns_with_64_bit_offsets_give_the_same_hashes() -> None:
    texts = ["Ünïted 2nd", "", "don't"]
    data, starts = text_arrays(pa.array(texts))
    _assert_equal(word_hashes(data, starts), word_hashes(data, starts.astype(np.int64)))


def test_no_byte_after_the_end_of_a_text_is_read() -> None:
    for size in range(200):
        text = ("ab Cé'd " * 30).encode()[:size].decode(errors="ignore")
        data = np.frombuffer(text.encode(), np.uint8)
        # The same text with other words right behind it must not differ.
        longer = np.frombuffer((text + "zzz’é" * 30).encode(), np.uint8)
        starts = np.array([0, len(data)])
        _assert_equal(word_hashes(data, starts), word_hashes(longer, starts))


def test_offsets_beyond_the_data_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 3 bytes"):
        word_hashes(np.zeros(3, np.uint8), np.array([0, 4]))


def test_real_texts_match_the_plain_reference(shared_data: Path) -> None:
    with (shared_data / "text" / "docs.jsonl.zst").open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file).read(2_000_000).decode(errors="ignore").split("\n")
    texts = [json.loads(line)["text"] for line in lines[:-1]]
    for normalization in (NORMALIZATIONS[0], NORMALIZATIONS[-1]):
        actual = word_hashes(*text_arrays(pa.array(texts)), normalization)
        expected = [words(text, normalization) for text in texts]
        distinct = {word: word_hash(word) for text_words in expected for word in text_words}
        assert actual.hashes.tolist() == [distinct[word] for text_words in expected for word in text_words]
        # As many hashes as words: none collide.
        assert len(set(distinct.values())) == len(distinct)
        hashes = text_ngram_hashes(*text_arrays(pa.array(texts)), 8, normalization).hashes
        distinct_ngrams = {
            tuple(run[at : at + 8])
            for text in texts
            for run in segments(text, normalization)
            for at in range(len(run) - 7)
        }
        assert len(np.unique(hashes)) == len(distinct_ngrams)


def _assert_equal(one: Words, other: Words) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@given(text=st.text(), normalization=st.sampled_from([Normalization(), Normalization("drop", "ascii"), Shingling()]))
def test_the_positions_of_words_in_characters_equal_the_reference(text, normalization):
    text = text.encode("utf-8", "ignore").decode()
    assert hashing.word_spans(text, normalization) == word_spans(text, normalization)
