"""Columns of text encoded by gigatoken: equal to `tokenizers`, whatever the column, and within bounds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.core.errors import InputError
from pipelines.core.fast_encoding import FastEncoder
from pipelines.core.tokenizer_formats import parse_tokenizer, read_tokenizer

_TEXTS = ["hello <|endoftext|> wörld", "", "\u3000 a  b\n\n c", "don't 12 ſ", "漢字"]


@pytest.fixture(scope="module")
def tokenizer_json(shared_data: Path) -> bytes:
    return read_tokenizer(str(shared_data / "gpt2_vocab"))


@pytest.mark.parametrize("threads", [False, True])
def test_a_column_is_encoded_as_its_texts_are(tokenizer_json: bytes, threads: bool) -> None:
    encoder, library = FastEncoder(tokenizer_json, "gpt2"), parse_tokenizer(tokenizer_json, "gpt2")
    for column in (
        pa.array(_TEXTS),
        pa.array(["x", *_TEXTS, "z"]).slice(1, 5),
        pa.array([], pa.string()),
        pa.array([""]),
    ):
        ids, starts = encoder.encode(column, threads=threads)
        assert len(starts) == len(column) + 1
        for row, text in enumerate(column.to_pylist()):
            assert ids[starts[row] : starts[row + 1]].tolist() == library.encode(text).ids


def test_what_it_remembers_is_let_go_of(tokenizer_json: bytes) -> None:
    encoder = FastEncoder(tokenizer_json, "gpt2", forgets_after=10)
    first = encoder._tokenizer
    one = encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is first
    encoder.encode(pa.array(["word " * 2000]))
    again = encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is not first
    assert again.ids.tolist() == one.ids.tolist()


def test_what_gigatoken_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"odd\.json: gigatoken cannot load it .*--engine tokenizers"):
        FastEncoder(b'{"model": {"type": "WordPiece"}}', "odd.json")
