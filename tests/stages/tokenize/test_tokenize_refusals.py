"""Tokenizers that `tokenize` refuses, by name and with advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from token_run import run, write_tokenizer
from tokenizers import Tokenizer, models

from pipelines.errors import DamagedShardError, InputError
from webtext_cli.main import main


def _write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


def _tokenize(folder: Path, texts: list[str], tokenizer: Path) -> None:
    run(_write(folder / "docs.jsonl", texts), tokenizer, folder / "tokens")


def test_files_that_are_not_a_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="contains no tokenizer"):
        _tokenize(tmp_path, ["x"], tmp_path / "empty")
    with pytest.raises(InputError, match="no such file or folder; run `webtext train-bpe`"):
        _tokenize(tmp_path, ["x"], tmp_path / "absent")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(InputError, match=r"t\.json: is .*not a tokenizer"):
        _tokenize(tmp_path, ["x"], tmp_path / "t.json")
    (tmp_path / "empty" / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "empty" / "merges.txt").write_text("a b\n")
    with pytest.raises(InputError, match=r"vocab\.json: has no entry for 255 of the 256 bytes"):
        _tokenize(tmp_path, ["x"], tmp_path / "empty")


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.save(str(tmp_path / "t.json"))
    with pytest.raises(InputError, match=r"has no <\|endoftext\|> in its vocabulary"):
        _tokenize(tmp_path, ["x"], tmp_path / "t.json")


def test_dropout_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "t.json")
    settings = json.loads(path.read_text())
    settings["model"]["dropout"] = 0.1
    path.write_text(json.dumps(settings))
    with pytest.raises(InputError, match="BPE dropout"):
        _tokenize(tmp_path, ["x"], path)


def test_a_damaged_tokenizer_of_the_corpus_is_refused(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["the text the reader reads"] * 3)
    assert main(["train-bpe", "-i", str(documents), "-o", str(tmp_path / "bpe"), "--vocab-size", "262", "-q"]) == 0
    path = tmp_path / "bpe" / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b'"t"', b'"u"', 1))
    with pytest.raises(DamagedShardError, match=r"tokenizer\.json: is damaged"):
        run(documents, tmp_path / "bpe", tmp_path / "tokens")


def test_a_folder_with_counts_only_is_refused_with_the_remedy(tmp_path: Path) -> None:
    documents = _write(tmp_path / "docs.jsonl", ["the text the reader reads"] * 3)
    assert main(["train-bpe", "-i", str(documents), "-o", str(tmp_path / "bpe"), "--count-only", "-q"]) == 0
    with pytest.raises(InputError, match=r"bpe: .*no tokenizer; .*`webtext train-bpe --counts .*bpe`"):
        run(documents, tmp_path / "bpe", tmp_path / "tokens")
