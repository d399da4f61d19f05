"""The estimate of memory and disk, and the refusals if they do not suffice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from token_run import Notes, run, write_parquet, write_tokenizer

from pipelines import storage
from pipelines.engine import machine
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.stages.tokenize.estimate import Needs

_GB = 10**9


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.mark.usefixtures("warm_processes")
def test_only_too_little_memory_for_all_workers_is_noted(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    for number in range(3):
        write_parquet(tmp_path / "docs" / f"{number}.parquet", [{"id": str(number), "text": "a text"}])
    notes = Notes()
    run(tmp_path / "docs", small, tmp_path / "out", RunOptions(LocalExecutor(3), progress=notes), held_out=0.0)
    assert notes.notes == []
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 1_100_000_000)
    run(tmp_path / "docs", small, tmp_path / "again", RunOptions(LocalExecutor(3), progress=notes), held_out=0.0)
    message = "3 workers need up to 500 MB of memory each, more than the 1.1 GB available; use --workers 2"
    assert notes.notes == [message]


def _needs(shard_tokens: int, *, is_local: bool = True) -> Needs:
    return Needs(10 * _GB, 8_000_000, token_bytes=2, shard_tokens=shard_tokens, is_local=is_local)


def test_shards_larger_than_memory_are_refused_with_a_size_that_fits() -> None:
    fitting = _needs(100_000_000)
    fitting.check_memory(3 * _GB)
    assert fitting.describe_shortage(3, 3 * _GB) == fitting.describe_shortage(3, None) == ""
    assert fitting.describe_shortage(4, 3 * _GB).endswith(" more than the 3 GB available; use --workers 3")
    message = r"5\.5 GB of memory, but 3 GB is available; use --shard-tokens (\d+) or"
    with pytest.raises(InputError, match=message) as refusal:
        _needs(2_000_000_000).check_memory(3 * _GB)
    match = re.search(r"--shard-tokens (\d+)", str(refusal.value))
    assert match
    _needs(int(match[1])).check_memory(3 * _GB)
    with pytest.raises(InputError, match="free some memory"):
        fitting.check_memory(200_000_000)
    _needs(2_000_000_000).check_memory(None)


def test_blocks_of_runs_in_an_object_store_count() -> None:
    local, remote = (_needs(10**8, is_local=is_local) for is_local in (True, False))
    assert remote.memory_bytes - local.memory_bytes == 16 * (16 << 20)


def test_too_little_memory_is_refused_before_the_work(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 200_000_000)
    write_parquet(tmp_path / "docs.parquet", [{"id": "a", "text": "text"}])
    with pytest.raises(InputError, match="one worker needs about"):
        run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)


@pytest.mark.parametrize(
    ("free_bytes", "shard_tokens", "message"),
    [(5000, 1000, "MB more, 5 kB are free"), (10**12, 1, r"use --shard-tokens \d+ or more")],
)
def test_too_large_an_output_is_refused_before_the_work(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, shard_tokens: int, message: str
) -> None:
    (tmp_path / "docs.jsonl").write_text(json.dumps({"id": "a", "text": "text " * 400_000}))
    monkeypatch.setattr(storage, "free_bytes", lambda path: free_bytes)
    monkeypatch.setattr("pipelines.stages.tokenize.stage.encode_shard", None)
    with pytest.raises(InputError, match=message):
        run(tmp_path / "docs.jsonl", small, tmp_path / "out", held_out=0.0, shard_tokens=shard_tokens)


def test_too_little_disk_space_is_refused_and_the_run_resumes(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "docs.parquet", [{"id": "a", "text": "text " * 20_000}])
    with monkeypatch.context() as patch:
        patch.setattr(storage, "free_bytes", lambda path: 5000)
        with pytest.raises(InputError, match=r"out: needs about .* kB more, 5 kB are free"):
            run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0)
    monkeypatch.setattr("pipelines.stages.tokenize.stage.encode_shard", None)  # is not repeated
    assert run(tmp_path / "docs.parquet", small, tmp_path / "out", held_out=0.0).extra["train_documents"] == 1


def test_free_space_is_that_of_the_output_disk(tmp_path: Path) -> None:
    free = storage.free_bytes(str(tmp_path / "not" / "there" / "yet"))
    assert free is not None
    assert free > 0
    assert storage.free_bytes("memory://anything") is None


def test_more_shards_than_a_folder_should_contain_are_refused() -> None:
    with pytest.raises(InputError, match=r"shards of 1 tokens would be [\d,]+ files, .*; use --shard-tokens 100001 or"):
        _needs(1).check_output("memory://x")
