"""Columns of text encoded by gigatoken: equal to `tokenizers`, whatever the column, and within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from pipelines.engine import machine
from pipelines.errors import InputError
from pipelines.tokenizers import encoding
from pipelines.tokenizers.encoding import FastEncoder, LibraryEncoder
from pipelines.tokenizers.formats import load_document_tokenizer, read_tokenizer

_TEXTS = ["hello <|endoftext|> wörld", "", "\u3000 a  b\n\n c", "don't 12 ſ", "漢字"]


@pytest.fixture(scope="module")
def tokenizer_json(shared_data: Path) -> bytes:
    return read_tokenizer(str(shared_data / "gpt2_vocab"))


@pytest.fixture(scope="module")
def library(tokenizer_json: bytes) -> Tokenizer:
    return load_document_tokenizer(tokenizer_json, "gpt2")


@pytest.fixture(scope="module")
def encoder(tokenizer_json: bytes) -> FastEncoder:
    return FastEncoder(tokenizer_json, "gpt2")


@pytest.mark.parametrize("threads", [False, True])
def test_a_column_is_encoded_as_its_texts_are(encoder: FastEncoder, library: Tokenizer, threads: bool) -> None:
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


def test_the_cache_is_cleared(tokenizer_json: bytes) -> None:
    encoder = FastEncoder(tokenizer_json, "gpt2", max_texts=10)
    first = encoder._tokenizer
    one = encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is first
    encoder.encode(pa.array(["word " * 2000]))
    again = encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is not first
    assert again.ids.tolist() == one.ids.tolist()


def test_an_unsupported_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"odd\.json: gigatoken cannot load it .*--engine tokenizers"):
        FastEncoder(b'{"model": {"type": "WordPiece"}}', "odd.json")


def test_added_tokens_that_are_not_special_are_refused_by_name(tokenizer_json: bytes) -> None:
    settings = json.loads(tokenizer_json)
    settings["added_tokens"].append({**settings["added_tokens"][0], "content": "<tool_call>", "special": False})
    with pytest.raises(InputError, match=r"q\.json: .*added tokens that are not special: '<tool_call>'; use --engine"):
        FastEncoder(json.dumps(settings).encode(), "q.json")


def test_it_is_reloaded_when_the_process_has_grown(tokenizer_json: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    level = 1_000_000_000
    monkeypatch.setattr(machine, "resident_bytes", lambda: level)
    encoder = FastEncoder(tokenizer_json, "gpt2")
    first = encoder._tokenizer
    level += 390_000_000
    one = encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is first
    level += 20_000_000
    again = encoder.encode(pa.array(_TEXTS))
    second = encoder._tokenizer
    assert second is not first
    assert again.ids.tolist() == one.ids.tolist()
    encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is second


def test_texts_are_counted_if_memory_is_unknown(tokenizer_json: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "resident_bytes", lambda: None)
    encoder = FastEncoder(tokenizer_json, "gpt2", max_texts=10)
    first = encoder._tokenizer
    encoder.encode(pa.array(["word " * 2000]))
    encoder.encode(pa.array(_TEXTS))
    assert encoder._tokenizer is not first


@pytest.mark.parametrize("slice_bytes", [1, 7, 30])
def test_slices_change_nothing(
    tokenizer_json: bytes, encoder: FastEncoder, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    column = pa.array(["x", *_TEXTS, "", "z" * 50, ""]).slice(1)
    whole = encoder.encode(column)
    monkeypatch.setattr(encoding, "_SLICE_BYTES", slice_bytes)
    sliced = FastEncoder(tokenizer_json, "gpt2").encode(column)
    assert sliced.ids.tolist() == whole.ids.tolist()
    assert sliced.starts.tolist() == whole.starts.tolist()


@pytest.mark.slow
def test_the_memory_of_words_that_never_repeat_is_bounded(tokenizer_json: bytes) -> None:
    if machine.resident_bytes() is None:
        pytest.skip("the memory of the process is unknown")
    encoder = FastEncoder(tokenizer_json, "gpt2")
    before = machine.resident_bytes()
    assert before is not None
    chance = np.random.default_rng(0)
    for _ in range(5):
        letters = chance.integers(97, 123, (1 << 20, 8), dtype=np.uint8)
        letters[:, 7] = 32
        encoder.encode(pa.array([part.tobytes().decode() for part in np.split(letters, 16)]))
        level = machine.resident_bytes()
        assert level is not None
        assert level - before < 800_000_000


_WITHOUT_GIGATOKEN = """
import sys
sys.modules["gigatoken"] = sys.modules["gigatoken.gigatoken_rs"] = None
from webtext_cli.main import main
folder = sys.argv[1]
train = ["train-bpe", "-i", folder + "/d.jsonl", "-o", folder + "/bpe", "--vocab-size", "262", "--workers", "1"]
assert main(train) == 0
run = ["tokenize", "-i", folder + "/d.jsonl", "--tokenizer", folder + "/bpe", "--workers", "1", "--held-out", "0"]
assert main([*run, "-o", folder + "/auto"]) == 0
assert main([*run, "-o", folder + "/asked", "--engine", "gigatoken"]) != 0
"""


def test_the_commands_work_without_gigatoken(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(number), "text": "the text the reader reads"}) for number in range(20)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_GIGATOKEN, str(tmp_path)], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "encoding with tokenizers, which is slower" in output
    assert "gigatoken is not installed; use --engine tokenizers" in output
    assert "Traceback" not in output
    assert json.loads((tmp_path / "auto" / "tokens.json").read_text())["engine"] == "tokenizers"


def test_the_library_takes_a_column_that_begins_with_an_empty_text(library: Tokenizer) -> None:
    ids, starts = LibraryEncoder(library).encode(pa.array(["", "a word", ""]))
    assert ids.tolist() == library.encode("a word").ids
    assert starts.tolist() == [0, 0, 2, 2]
