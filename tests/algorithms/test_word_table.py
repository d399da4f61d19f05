"""Words are those of GPT-2's split, as in other libraries; in every column, wherever buffers end and tables grow."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pipelines.algorithms.bpe import word_table
from pipelines.algorithms.bpe.byte_level import token_bytes
from pipelines.algorithms.bpe.split import GPT2_SPLIT
from pipelines.algorithms.bpe.split_classes import LETTER, NUMBER, OTHER, SPACE, split_classes
from pipelines.algorithms.bpe.word_table import WordTable, bucket_of_words, count_words

_PIECES = [
    *"'s 'll ' 're 'v 't'd '' a Ab é 漢 ß 12 ½ _ ... 🏳 hello world ’s \u00a0 \u3000 \x85 \x1c \x00 \u200d".split(" "),
    *[" ", "  ", "\n", "\t", "\r\n", " the", " of", "wonderful" * 5, "x" * 31, "y" * 32, " " * 33, "漢" * 11],
]
_TEXTS = st.lists(
    st.tuples(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join), st.integers(0, 1)), max_size=6
)


def _counted(table: WordTable) -> dict[str, tuple[int, ...]]:
    data, starts = table.column()
    words = [data[start:end].tobytes().decode() for start, end in itertools.pairwise(starts)]
    assert len(set(words)) == len(words)
    return dict(zip(words, map(tuple, table.counts().tolist()), strict=True))


def _add(table: WordTable, texts: list[tuple[str, int]], before: bytes = b"") -> None:
    """Add texts as they stand in a column that is a slice of another: something before them, something behind them."""
    encoded = [text.encode() for text, _ in texts]
    data = np.frombuffer(before + b"".join(encoded) + before, np.uint8)
    starts = np.cumsum([len(before), *map(len, encoded)], dtype=np.int32)
    table.add(data, starts, np.array([column for _, column in texts], np.uint8))


def _expected(texts: list[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    found = [Counter[str](), Counter[str]()]
    for text, column in texts:
        found[column].update(regex.findall(GPT2_SPLIT, text))
    return {word: (found[0][word], found[1][word]) for word in (*found[0], *found[1])}


@settings(deadline=None, max_examples=200)
@given(_TEXTS, st.sampled_from([b"", b"x", b"'s a", "é ".encode() * 30]))
def test_words_match_the_regular_expression(texts: list[tuple[str, int]], before: bytes) -> None:
    table = WordTable(columns=2)
    _add(table, texts, before)
    assert _counted(table) == _expected(texts)


@settings(deadline=None, max_examples=100)
@given(_TEXTS, st.sampled_from([1, 2, 9]))
def test_results_do_not_depend_on_buffer_sizes(texts: list[tuple[str, int]], most: int) -> None:
    table = WordTable(columns=2, batch_words=64 + most, initial_words=1, initial_bytes=1)
    for text in texts:
        _add(table, [text])
    assert _counted(table) == _expected(texts)


def test_many_words() -> None:
    chosen = random.Random(7)
    texts = [
        ("".join(chosen.choice(_PIECES) + f" w{chosen.randrange(10**6)}" for _ in range(2000)), number % 2)
        for number in range(20)
    ]
    table = WordTable(columns=2)
    _add(table, texts)
    assert table.words > 8192
    assert _counted(table) == _expected(texts)
    table.clear()
    assert _counted(table) == {}
    _add(table, texts[:1])
    assert _counted(table) == _expected(texts[:1])


def test_words_are_in_the_order_of_their_first_occurrence() -> None:
    table = WordTable()
    _add(table, [("b a b\na", 0)])
    assert list(_counted(table).items()) == [("b", (1,)), (" a", (1,)), (" b", (1,)), ("\n", (1,)), ("a", (1,))]


def test_long_words_with_equal_hashes_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes decide: with a table of one slot a word each look-up passes by others."""
    monkeypatch.setattr(word_table, "_SLOTS_PER_WORD", 1)
    texts = [(" ".join(f"averyveryverylongword{'abcdefghij'[number % 10] * 9}" for number in range(100)), 0)]
    table = WordTable(columns=2)
    _add(table, texts)
    assert _counted(table) == _expected(texts)


def test_classes_match_tokenizers() -> None:
    """At both ends of each range of characters of a class, and in the middle."""
    classes = split_classes()
    last = np.flatnonzero(np.diff(classes))
    middle = (last[1:] + last[:-1]) // 2
    codes = {int(code) for code in np.concatenate([last, last + 1, middle])} - set(range(0xD800, 0xE000))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    for code in codes:
        joined = [
            kind
            for kind, before in ((LETTER, "a"), (NUMBER, "1"), (OTHER, "!"))
            if len(split.pre_tokenize_str(before + chr(code))) == 1
        ]
        assert joined == ([] if classes[code] == SPACE else [classes[code]]), hex(code)


@pytest.mark.slow
def test_all_classes_match_tokenizers() -> None:
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    classes = np.full(0x110000, SPACE, np.uint8)
    for kind, before in ((LETTER, "a"), (NUMBER, "1"), (OTHER, "!")):
        text = "\n\n".join(before + chr(code) for code in codes)
        words = (text[start:end] for _, (start, end) in split.pre_tokenize_str(text))
        classes[[ord(word[1]) for word in words if len(word) == 2 and word[0] == before]] = kind
    assert np.array_equal(np.delete(classes, slice(0xD800, 0xE000)), np.delete(split_classes(), slice(0xD800, 0xE000)))


# Libraries follow Unicode at their own pace: a letter of its latest versions is none to those that are behind.
_ANY_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30)
_TRICKY = st.lists(
    st.sampled_from(
        [
            "'s", "'ll", "'", "’s", " ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2028", "\u3000", "\x85", "\x1c", "\x00",
            "a", "Ab", "é", "e\u0301", "漢", "ß", "12", "½", "Ⅷ", "٣", "_", "...", "<|endoftext|>", "\u200d", "\u200b",
            "ʼ", "\U000e0001", "🏳",
        ]
    ),
    max_size=12,
).map("".join)  # fmt: skip


def _count_by_pattern(texts: list[bytes]) -> list[tuple[bytes, int]]:
    counts = Counter(word for text in texts for word in regex.findall(GPT2_SPLIT, text.decode()))
    return sorted((word.encode(), count) for word, count in counts.items())


@settings(deadline=None, max_examples=150)
@example(["", "a", ""])
@example([" ", " a"])
@given(st.lists(st.one_of(_TRICKY, _ANY_TEXT), max_size=4))
def test_counts_match_the_regular_expression(texts: list[str]) -> None:
    encoded = [text.encode() for text in texts]
    counted = count_words(encoded)
    assert sorted(counted) == _count_by_pattern(encoded)
    assert len(dict(counted)) == len(counted)


@settings(deadline=None, max_examples=150)
@given(st.one_of(_TRICKY, _ANY_TEXT))
def test_words_match_tokenizers(text: str) -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    assert dict(count_words([text.encode()])) == Counter(token_bytes(piece) for piece, _ in split)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(1, 70))
def test_the_bucket_of_a_word_is_its_fnv_hash(words: list[bytes], buckets: int) -> None:
    data, starts = np.frombuffer(b"".join(words), np.uint8), np.cumsum([0, *map(len, words)], dtype=np.int32)
    expected = []
    for word in words:
        hashed = 0xCBF29CE484222325
        for byte in word:
            hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
        expected.append((hashed >> 32) % buckets)
    assert bucket_of_words(data, starts, buckets).tolist() == expected


def test_the_pattern_matches_tiktoken() -> None:
    """Written otherwise there, with possessive quantifiers, so compared by what they find."""
    from tiktoken_ext.openai_public import r50k_pat_str

    text = "It's the 3rd  time, they'll say\n\n \tnothing... x"
    assert regex.findall(GPT2_SPLIT, text) == regex.findall(r50k_pat_str, text)


def test_real_text(shared_data: Path) -> None:
    text = (shared_data / "benchmarks" / "tinyshakespeare.txt").read_bytes()[:300_000]
    assert sorted(count_words([text])) == _count_by_pattern([text])


@settings(deadline=None)
@given(st.lists(st.one_of(_TRICKY, _ANY_TEXT), max_size=4))
def test_gigatoken_counts_the_same(texts: list[str]) -> None:
    """A private function of that library, which counts in one thread or many; it knows a few letters more."""
    from gigatoken.gigatoken_rs import pretokenized_counts

    joined = b"\xff".join(text.encode() for text in texts)
    expected = dict(pretokenized_counts(joined, b"\xff")) if joined else {}
    assert dict(count_words([text.encode() for text in texts])) == expected
