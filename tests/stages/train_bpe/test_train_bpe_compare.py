"""A tokenizer to compare with: shown in the report, or refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import read_report, train_bpe

_END = "<|endoftext|>"


def _train(folder: Path, output: Path, compare: Path | None = None, vocab_size: int = 280) -> dict[str, Any]:
    (folder / "d.jsonl").write_text(
        "".join(json.dumps({"text": f"low lower lowest {n % 7}"}) + "\n" for n in range(40))
    )
    train_bpe(
        TrainBpeConfig(vocab_size=vocab_size),
        documents=str(folder / "d.jsonl"),
        output=str(output),
        options=RunOptions(),
        compare=str(compare) if compare else None,
    )
    return read_report(str(output))


def test_another_tokenizer_is_shown_next_to_the_result(tmp_path: Path) -> None:
    small = _train(tmp_path, tmp_path / "small", vocab_size=262)
    report = _train(tmp_path, tmp_path / "bpe", tmp_path / "small")
    assert report["reference"]["name"] == "small"
    assert report["reference"]["entries"] == 262
    assert report["reference"]["bytes_per_token"] == small["tokenizer"]["bytes_per_token"]
    assert report["tokenizer"]["bytes_per_token"] > small["tokenizer"]["bytes_per_token"]


def test_a_tokenizer_that_only_the_library_loads_is_shown(tmp_path: Path) -> None:
    _train(tmp_path, tmp_path / "small")
    settings = json.loads((tmp_path / "small" / "tokenizer.json").read_text())
    added = {"content": "<tool>", "id": 280, "special": False, "single_word": False, "lstrip": False, "rstrip": False}
    settings["added_tokens"].append(added | {"normalized": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    report = _train(tmp_path, tmp_path / "bpe", tmp_path / "tokenizer.json")
    assert report["reference"]["entries"] == report["tokenizer"]["entries"] + 1
    assert report["reference"]["bytes_per_token"] == report["tokenizer"]["bytes_per_token"]


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"type": "BPE"}, "is not a tokenizer of the tokenizers"),
        ({"type": "BPE", "vocab": {"a": 0, _END: 1}, "merges": [["a", "b"]]}, "is not a tokenizer of the tokenizers"),
    ],
)
def test_an_unusable_tokenizer_is_refused_before_any_work(tmp_path: Path, model: dict[str, Any], problem: str) -> None:
    (tmp_path / "their.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(InputError, match=rf"--compare .*their\.json: .*{problem}.*; use another tokenizer, or omit"):
        _train(tmp_path, tmp_path / "bpe", tmp_path / "their.json")
    assert not (tmp_path / "bpe").exists()
