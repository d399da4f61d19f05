"""The plain BPE against GPT-2's own vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from pipelines.algorithms.bpe.byte_level import byte_characters, encode_piece, token_bytes


def test_the_byte_alphabet_is_gpt2s(shared_data: Path) -> None:
    vocabulary = json.loads((shared_data / "gpt2_vocab" / "encoder.json").read_text())
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    assert list(byte_characters().values()) == by_id[:256]


@given(st.binary(max_size=40))
def test_bytes_and_characters_round_trip(data: bytes) -> None:
    assert token_bytes("".join(byte_characters()[byte] for byte in data)) == data


def test_the_lowest_rank_is_merged_first() -> None:
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abc": 5, b"aa": 6}
    assert encode_piece(b"abc", ranks) == [5]
    assert encode_piece(b"aab", ranks) == [0, 4]
    assert encode_piece(b"aaa", ranks) == [6, 0]
    assert encode_piece(b"", ranks) == []
    with pytest.raises(KeyError):
        encode_piece(b"z", ranks)


@pytest.fixture(scope="module")
def gpt2(shared_data: Path) -> tuple[dict[bytes, int], Tokenizer]:
    """GPT-2's ranks by the bytes of the token, and its merges in the tokenizers library, without a split."""
    vocabulary = json.loads((shared_data / "gpt2_vocab" / "encoder.json").read_text())
    ranks = {token_bytes(token): id for token, id in vocabulary.items() if token != "<|endoftext|>"}
    lines = (shared_data / "gpt2_vocab" / "vocab.bpe").read_text().split("\n")[1:-1]
    return ranks, Tokenizer(models.BPE(vocabulary, [tuple(line.split(" ")) for line in lines]))


@settings(deadline=None, max_examples=200)
@given(piece=st.text(st.sampled_from("etaoin shrdluGĠé漢"), min_size=1, max_size=12))
def test_encoding_by_ranks_matches_tokenizers(gpt2: tuple[dict[bytes, int], Tokenizer], piece: str) -> None:
    ranks, library = gpt2
    characters = "".join(byte_characters()[byte] for byte in piece.encode())
    assert encode_piece(piece.encode(), ranks) == library.encode(characters).ids
