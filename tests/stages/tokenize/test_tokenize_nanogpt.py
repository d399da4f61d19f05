"""`--format nanogpt`: a folder that nanoGPT's `train.py` trains on as it is."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_run import END, Notes, described, pieces, run, stream, write_parquet, write_tokenizer
from tokenizers import Tokenizer

from pipelines.corpus.tables import CorpusTables
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError, WebtextError
from pipelines.model.training.data import open_tokens
from pipelines.records.document_options import DocumentConfig
from pipelines.stages.tokenize.token_shards import TokenShard, _merge_tokens, token_format
from pipelines.stages.tokenize.trace import trace

pytestmark = pytest.mark.usefixtures("warm_processes")

_NAMES = ["meta.pkl", "train-documents.parquet", "train.bin", "val-documents.parquet", "val.bin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, a tokenizer, and the tokens of the documents in shards and for nanoGPT."""
    folder = tmp_path_factory.mktemp("nanogpt")
    chance = random.Random(4)
    rows = [
        {"id": f"id {index}", "url": f"http://example.com/{index}", "text": f"{index} " + "the " * chance.randrange(90)}
        for index in range(80)
    ]
    write_parquet(folder / "in" / "0.parquet", rows[:50])
    write_parquet(folder / "in" / "1.parquet", rows[50:])
    write_tokenizer(folder / "tokenizer.json")
    _run(folder, "raw", format="raw", shard_tokens=700)
    _run(folder, "tokens", shard_tokens=700)
    return folder


def _run(folder: Path, output: str | Path, options: RunOptions | None = None, **config: Any) -> Path:
    values = {"format": "nanogpt", "held_out": 0.2} | config
    run(folder / "in", folder / "tokenizer.json", folder / output, options, **values)
    return folder / output


def _contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*_NAMES, "tokens.json")}


def test_each_split_is_one_file_with_the_tokens_of_its_shards(folder: Path) -> None:
    tokens = folder / "tokens"
    assert sorted(path.name for path in tokens.iterdir() if not path.name.startswith(".")) == sorted(
        [*_NAMES, "dropped-00000.parquet", "dropped-00001.parquet", "manifest.json", "tokenizer.json", "tokens.json"]
    )
    for split, name in (("train", "train.bin"), ("held-out", "val.bin")):
        expected = stream(folder / "raw", split)
        assert np.fromfile(tokens / name, "<u2").tolist() == expected
        [file] = described(tokens)["splits"][split]
        assert (file["name"], file["tokens"]) == (name, len(expected))
        [table] = pieces(tokens, split)
        assert file["documents"] == len(table)
        assert [row["offset"] for row in table] == [0, *np.cumsum([row["tokens"] for row in table])[:-1]]
        parts = [row for part in pieces(folder / "raw", split) for row in part]
        assert [row["id"] for row in table] == [row["id"] for row in parts if not row["document_offset"]]
        assert {row["document_offset"] for row in table} == {0}
        assert len(parts) > len(table) or split == "held-out"  # documents that the shards cut


def test_pretrain_and_trace_read_the_folder(folder: Path) -> None:
    opened = open_tokens(str(folder / "tokens"))
    assert opened.train.read(0, opened.train.tokens).tolist() == stream(folder / "raw", "train")
    [table] = pieces(folder / "tokens", "train")
    token = trace(f"{folder / 'tokens' / 'train.bin'}:{table[3]['offset'] + 1}")
    assert (token.id, token.position_in_document) == (table[3]["id"], 1)
    with pytest.raises(UsageError, match=r"val\.bin has tokens 0 to"):
        trace(f"{folder / 'tokens' / 'val.bin'}:1000000")


def test_the_files_depend_neither_on_the_workers_nor_on_the_shards(folder: Path, tmp_path: Path) -> None:
    _run(folder, tmp_path / "workers", RunOptions(LocalExecutor(2)), shard_tokens=700)
    assert _contents(tmp_path / "workers") == _contents(folder / "tokens")
    _run(folder, tmp_path / "whole")
    assert (tmp_path / "whole" / "train.bin").read_bytes() == (folder / "tokens" / "train.bin").read_bytes()
    assert pieces(tmp_path / "whole", "train") == pieces(folder / "tokens", "train")


def test_an_interrupted_run_resumes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(shard: TokenShard, *context: Any) -> Any:
        if shard.index == 2:
            raise WebtextError("power failure")
        return _merge_tokens(shard, *context)

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.stages.tokenize.token_shards._merge_tokens", killed)
        with pytest.raises(WebtextError, match="power failure"):
            _run(folder, tmp_path / "out", shard_tokens=700)
    assert not (tmp_path / "out" / "train.bin").exists()
    monkeypatch.setattr("pipelines.stages.tokenize.stage.encode_shard", None)  # the first phase is not repeated
    _run(folder, tmp_path / "out", shard_tokens=700)
    assert _contents(tmp_path / "out") == _contents(folder / "tokens")


def test_meta_has_the_texts_that_nanogpt_samples(folder: Path) -> None:
    """`sample.py` encodes a prompt by `[stoi[c] for c in s]` and decodes by `itos[i]`."""
    meta = pickle.loads((folder / "tokens" / "meta.pkl").read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert meta["vocab_size"] == described(folder / "tokens")["vocab_size"] == 258
    ids = tokenizer.encode("the end\n", add_special_tokens=False).ids
    assert "".join(meta["itos"][id] for id in ids) == "the end\n"
    assert [meta["stoi"][character] for character in "end\n"] == tokenizer.encode("end\n").ids
    assert meta["itos"][257] == END
    assert "\ufffd" not in meta["stoi"]


def test_ids_that_nanogpt_cannot_read_are_refused() -> None:
    with pytest.raises(UsageError, match=r"nanoGPT reads ids of 16 bits.*use --format raw"):
        token_format("nanogpt", 65_537).check(100)
    token_format("nanogpt", 65_536).check(100)


def test_a_folder_without_held_out_documents_says_that_val_is_missing(folder: Path, tmp_path: Path) -> None:
    notes = Notes()
    _run(folder, tmp_path / "out", RunOptions(progress=notes), held_out=0.0)
    assert any("no val.bin, which nanoGPT's train.py reads" in note for note in notes.notes)
    assert not (tmp_path / "out" / "val.bin").exists()


def test_the_tokens_are_in_the_tables_of_the_corpus(folder: Path, tmp_path: Path) -> None:
    _run(folder, tmp_path / "tokenize", shard_tokens=700)
    tables = CorpusTables(str(tmp_path), DocumentConfig(), RunOptions())
    rows = tables.rows("SELECT split, shard, sum(tokens) AS n FROM tokens GROUP BY ALL ORDER BY n")
    totals = described(tmp_path / "tokenize")["totals"]
    assert rows == [
        {"split": "held-out", "shard": "val", "n": totals["held-out"]["tokens"]},
        {"split": "train", "shard": "train", "n": totals["train"]["tokens"]},
    ]


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_the_documented_loader_reads_random_windows(folder: Path, name: str) -> None:
    """`get_batch` of nanoGPT's `train.py`, of which benchmarks/nanogpt_training.py is a reimplementation in torch."""
    data = np.memmap(folder / "tokens" / name, dtype=np.uint16, mode="r")
    chance = np.random.default_rng(1)
    starts = [*chance.integers(len(data) - 16, size=8), len(data) - 17]
    x = np.stack([data[i : i + 16].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1 : i + 1 + 16].astype(np.int64) for i in starts])
    assert (x[:, 1:] == y[:, :-1]).all()
    assert max(x.max(), y.max()) < 258
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert all("the " in tokenizer.decode(row.tolist()) for row in x)


@pytest.mark.skipif("WEBTEXT_NANOGPT" not in os.environ, reason="WEBTEXT_NANOGPT names no checkout of nanoGPT")
def test_nanogpt_trains_on_the_folder(folder: Path, tmp_path: Path) -> None:
    options = {
        **{"dataset": folder / "tokens", "out_dir": tmp_path / "out", "device": "cpu", "dtype": "float32"},
        **{"compile": False, "eval_iters": 2, "eval_interval": 2, "log_interval": 1, "max_iters": 4},
        **{"block_size": 16, "batch_size": 4, "gradient_accumulation_steps": 1, "n_layer": 1, "n_head": 2},
        **{"n_embd": 16, "lr_decay_iters": 4, "warmup_iters": 1, "always_save_checkpoint": True},
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    result = subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=os.environ["WEBTEXT_NANOGPT"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "found vocab_size = 258" in result.stdout
    assert "iter 4: loss" in result.stdout
    assert (tmp_path / "out" / "ckpt.pt").exists()
