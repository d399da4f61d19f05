"""The examples of docs/token-dataset.md run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_folder import write_token_folder
from tokenizers import Tokenizer

for _module in ("accelerate", "torchdata", "transformers"):
    pytest.importorskip(_module)

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "token-dataset.md"
_TRAIN_BLOCKS, _LENGTH = 39, 256
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # by torchdata 0.11
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),  # by Trainer, without a GPU
]


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has my-corpus/tokenize."""
    ids = np.random.default_rng(0).integers(0, 50, _TRAIN_BLOCKS * _LENGTH)
    folder = tmp_path / "my-corpus" / "tokenize"
    write_token_folder(folder, np.split(ids, [5_000]), [ids[: 4 * _LENGTH]], tokenizer)
    monkeypatch.chdir(tmp_path)


def run_example(needle: str) -> dict[str, Any]:
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", _PAGE.read_text(), flags=re.DOTALL)
        if re.search(needle, block)
    ]
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, f"{_PAGE.name}, {needle}", "exec"), names)
    return names


def test_opening(capsys: pytest.CaptureFixture[str]) -> None:
    run_example("dataset.trace")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"{_TRAIN_BLOCKS} 300 299"
    assert last == "0 255 train-00000.bin None"


def test_torch(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_example("StatefulDataLoader")
    assert names["step"] == 10  # 78 blocks in batches of 8
    assert names["loss"].item() < np.log(300)
    assert run_example("StatefulDataLoader")["step"] == 2  # resumed after step 8
    assert re.fullmatch(r"(loss \d\.\d\d\n){2}", capsys.readouterr().out)


def test_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_example("Accelerator")
    assert names["loss"].item() < np.log(300)
    assert re.fullmatch(r"loss \d\.\d\d\n", capsys.readouterr().out)


def test_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_example("Trainer")
    assert names["trainer"].state.global_step == 5
    assert re.search(r"held-out loss \d\.\d\d\n", capsys.readouterr().out)
