"""Words are those of GPT-2's split, whoever counts them: we, gigatoken, `regex`, `tokenizers`, tiktoken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pipelines.algorithms.bpe.byte_level import token_bytes
from pipelines.algorithms.bpe.word_counts import GPT2_SPLIT, bucket_of_words, count_words

# Libraries follow Unicode at their own pace: a letter of its latest versions is none to those that are behind.
_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30)
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
@given(st.lists(st.one_of(_TRICKY, _TEXT), max_size=4))
def test_counts_match_the_regular_expression(texts: list[str]) -> None:
    encoded = [text.encode() for text in texts]
    counted = count_words(encoded)
    assert sorted(counted) == _count_by_pattern(encoded)
    assert len(dict(counted)) == len(counted)


@settings(deadline=None, max_examples=150)
@given(st.one_of(_TRICKY, _TEXT))
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
@given(st.lists(st.one_of(_TRICKY, _TEXT), max_size=4))
def test_gigatoken_counts_the_same(texts: list[str]) -> None:
    """A private function of that library, which counts in one thread or many; it knows a few letters more."""
    from gigatoken.gigatoken_rs import pretokenized_counts

    joined = b"\xff".join(text.encode() for text in texts)
    expected = dict(pretokenized_counts(joined, b"\xff")) if joined else {}
    assert dict(count_words([text.encode() for text in texts])) == expected
