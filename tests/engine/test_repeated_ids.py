"""Ids that several documents of an input share are counted and noted, whatever tasks, kills and repairs there were."""

from __future__ import annotations

import dataclasses
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine import repeated_ids
from pipelines.engine.manifest import read_manifest
from pipelines.engine.repeated_ids import count_repeated_ids, hash_ids, write_id_hashes
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.pipeline import BY_NAME
from pipelines.progress import Silent
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.shards import write_shard

_READERS_OF_DOCUMENTS: dict[str, dict[str, Any]] = {
    "dedup": {},
    "remove-wikipedia": {},
    "train-bpe": {"vocab_size": 260, "held_out": 0.0},
    "overlap-index": {},
    "search": {},
}


@dataclasses.dataclass(frozen=True)
class _Config:
    pass


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def of_ids(self) -> list[str]:
        return [note for note in self.notes if "duplicate_ids" in note]


@pytest.mark.parametrize("hashes_in_memory", [1 << 26, 100])
def test_every_document_after_the_first_of_an_id_counts(
    tmp_path: Path, hashes_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_ids, "_HASHES_IN_MEMORY", hashes_in_memory)
    tasks = [["a", "b", "a"], ["c", "a", "é"], ["é", "d"], [uuid.uuid4().hex for _ in range(1000)]]
    for number, ids in enumerate(tasks):
        write_id_hashes(str(tmp_path), f"task-{number}", hash_ids(ids))
    (tmp_path / "ids" / "task-0.tmp-1-2").write_bytes(hash_ids(["a", "b"]))  # of a killed run
    assert count_repeated_ids(str(tmp_path)) == 3
    assert count_repeated_ids(str(tmp_path / "empty")) == 0


def _run(output: Path, ids: list[list[str]], stop_after: int | None = None) -> tuple[list[str], dict[str, float]]:
    """Run a stage with one task per list of ids; return the notes on ids and the counts of the manifest."""

    def read(task: tuple[int, list[str]], output: str) -> TaskResult:
        number, ids = task
        if number == stop_after:
            raise KeyboardInterrupt
        with write_shard(output, f"dropped-{number:05d}.parquet", DROPPED_SCHEMA) as dropped:
            drops = Drops(dropped.write)
            drops.check_ids(ids)
        return drops.task_result(len(ids), (dropped.entry,))

    progress = _Notes()
    options = RunOptions(progress=progress)
    with stage_run(Stage("numbers", 1), _Config(), inputs={}, output=str(output), options=options) as run:
        if not run.finished:
            run.map(read, list(enumerate(ids)), run.output, name=lambda task: f"numbers-{task[0]:05d}")
        run.finish()
    return progress.of_ids(), read_manifest(str(output)).counts


def test_a_run_notes_and_counts_repeated_ids(tmp_path: Path) -> None:
    [note], counts = _run(tmp_path / "out", [["a", "b"], ["b", "a"]])
    assert note.startswith("2 records of the input have the same id as an earlier one")
    assert counts == {"duplicate_ids": 2}
    assert _run(tmp_path / "unique", [["a", "b"], ["c"]]) == ([], {})
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == []


def test_ids_of_tasks_before_a_kill_count(tmp_path: Path) -> None:
    ids = [["a", "b"], ["b"], ["a"]]
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out", ids, stop_after=1)
    _, counts = _run(tmp_path / "out", ids)
    assert counts == {"duplicate_ids": 2}


def test_a_repaired_result_keeps_its_count(tmp_path: Path) -> None:
    ids = [["a", "b"], ["b"], ["a"]]
    _run(tmp_path / "out", ids)
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    (tmp_path / "out" / "dropped-00001.parquet").unlink()
    _run(tmp_path / "out", ids)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


def _run_stage(name: str, documents: list[Path] | Path, output: Path) -> tuple[Summary, list[str]]:
    stage, progress = BY_NAME[name], _Notes()
    config = stage.config_type()(**_READERS_OF_DOCUMENTS[name])
    paths = [str(path) for path in documents] if isinstance(documents, list) else str(documents)
    options = RunOptions(progress=progress)
    return stage.load()(config, documents=paths, output=str(output), options=options), progress.of_ids()


@pytest.mark.parametrize("name", _READERS_OF_DOCUMENTS)
def test_a_stage_counts_repeated_ids_of_documents_from_elsewhere(name: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, path in enumerate(files):
        rows = [(id, f"the {number} text of {id} in {path.name}, written once") for id in ("same", path.name)]
        lines = [json.dumps({"id": id, "url": f"http://{id}.example/", "text": text}) for id, text in rows]
        path.write_text("\n".join(lines))
    summary, notes = _run_stage(name, files, tmp_path / "out")
    assert (summary.records_in, summary.extra["duplicate_ids"], len(notes)) == (4, 1, 1)


def test_ids_in_the_folder_of_a_stage_are_not_noted_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "a b c d e f g h i"}\n{"id": 1, "text": "j k l m n o p q"}\n')
    _, first = _run_stage("dedup", [tmp_path / "a.jsonl"], tmp_path / "dedup")
    summary, second = _run_stage("overlap-index", tmp_path / "dedup", tmp_path / "index")
    assert (len(first), len(second)) == (1, 0)
    assert "duplicate_ids" not in summary.extra
