"""Runs of a stage: finished work is kept, and what is damaged is named and rebuilt."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from numbers_run import (
    Config,
    Notes,
    Task,
    files_below,
    process_of,
    run_numbers,
    run_with_folder,
    top_files,
)

from pipelines import progress, storage
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import (
    DamagedShardError,
    InputError,
    LockedError,
    StorageError,
    UsageError,
    WebtextError,
)
from pipelines.records import shards
from pipelines.records.inputs import open_stage


def test_a_finished_run_has_a_manifest_and_a_summary(tmp_path: Path) -> None:
    summary, done = run_numbers(tmp_path / "out", Config(least=5))
    assert done == [0, 10, 20, 30]
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (40, 35, {"too_low": 5})
    assert summary.to_json()["sum"] == sum(range(5, 40))
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest.identity.config == {"least": 5}
    assert [shard.name for shard in manifest.shards] == [f"numbers-0000{number}" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []


def test_a_second_run_does_nothing_and_says_the_same(tmp_path: Path) -> None:
    first, _ = run_numbers(tmp_path / "out")
    before = top_files(tmp_path / "out")
    second, done = run_numbers(tmp_path / "out")
    assert done == []
    assert dataclasses.replace(second, seconds=first.seconds) == first
    assert top_files(tmp_path / "out") == before


class _Unreachable(LocalExecutor):
    @property
    def workers(self) -> int:
        raise UsageError("no cluster answers there")


def test_a_finished_run_needs_no_executor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cluster answers"):
        run_numbers(tmp_path / "numbers", options=RunOptions(executor=_Unreachable(2)))
    assert '"outcome": "failed"' in (tmp_path / "runs.log").read_text()
    run_numbers(tmp_path / "numbers")
    assert run_numbers(tmp_path / "numbers", options=RunOptions(executor=_Unreachable(2)))[1] == []


@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_an_interrupted_run_resumes_and_ends_with_the_same_bytes(tmp_path: Path, stop_after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "cut", stop_after=stop_after)
    with pytest.raises(InputError, match=r"numbers has not finished; re-run the command that wrote .*cut to resume it"):
        open_stage(str(tmp_path / "cut"), ["dedup"])
    _, done = run_numbers(tmp_path / "cut")
    assert len(done) == 4 - stop_after
    run_numbers(tmp_path / "whole")
    assert top_files(tmp_path / "cut") == top_files(tmp_path / "whole")


def test_temporaries_in_folders_of_the_stage_are_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_with_folder(tmp_path, killed=True)
    for folder in ("own", "own/x"):
        (tmp_path / folder / "a.txt.tmp-99-0").write_text("half")
    assert set(run_with_folder(tmp_path)) == {"manifest.json", "own/x/a.txt"}


def test_temporaries_of_another_stage_inside_the_folder_stay(tmp_path: Path) -> None:
    run_numbers(tmp_path)
    name = "documents-00000.parquet.tmp-abcd1234-77-0"
    own, other = tmp_path / name, tmp_path / "other" / name
    other.parent.mkdir()
    for path in (own, other):
        path.write_text("half")
    run_numbers(tmp_path)
    assert other.exists()
    assert not own.exists()


def test_a_folder_named_with_a_slash_belongs_to_the_stage(tmp_path: Path) -> None:
    run_numbers(tmp_path, writes=("own/",))
    (tmp_path / "own" / "x").mkdir(parents=True)
    (tmp_path / "own" / "x" / "b.txt").write_text("not listed")
    (tmp_path / "own" / "x" / "c.txt.tmp-99-0").write_text("half")
    run_numbers(tmp_path, writes=("own/",))
    assert [path.name for path in (tmp_path / "own" / "x").iterdir()] == ["b.txt"]
    run_numbers(tmp_path, version=2, writes=("own/",), options=RunOptions(overwrite=True))
    assert not (tmp_path / "own").exists()


def test_a_damaged_file_in_a_folder_of_the_stage_still_belongs_to_it(tmp_path: Path) -> None:
    run_with_folder(tmp_path)
    whole = files_below(tmp_path)
    (tmp_path / "own/x/a.txt").write_text("other")
    assert run_with_folder(tmp_path) == whole


def test_a_run_in_which_everything_was_dropped_is_retried(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(
            WebtextError, match=r"no documents left: all 40 records were dropped.*retry if the cause was temporary"
        ):
            run_numbers(tmp_path / "out", Config(least=100))
    assert [path.name for path in (tmp_path / "out" / "_journal").iterdir()] == ["run.json"]


def test_progress_counts_what_remains(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "out", stop_after=3)
    notes = Notes()
    run_numbers(tmp_path / "out", options=RunOptions(progress=notes), total=40)
    assert notes.totals == [10]
    assert notes.notes == ["numbers: shards: resuming; 3 of 4 tasks already complete"]


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_damaged_shard_is_named_and_rebuilt(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    run_numbers(out)
    before = top_files(out)
    shard = out / "numbers-00002.json"
    if damage == "missing":
        shard.unlink()
    else:
        data = shard.read_bytes()
        shard.write_bytes(data[:-1] if damage == "shorter" else data.replace(b"2", b"3"))
    words = "is missing" if damage == "missing" else "is damaged"
    with pytest.raises(DamagedShardError, match=rf"numbers-00002\.json: {words}.*re-run `webtext numbers`"):
        open_stage(str(out), ["numbers"]).file("numbers-00002.json").verify()
    notes = Notes()
    _, done = run_numbers(out, options=RunOptions(progress=notes))
    assert done == [20]
    assert f"numbers-00002.json: {words}" in notes.notes[0]
    assert notes.notes[1:] == ["numbers: shards: resuming; 3 of 4 tasks already complete"]
    assert top_files(out) == before


def test_files_of_an_earlier_input_are_removed_when_the_run_resumes_with_another(tmp_path: Path) -> None:
    out = str(tmp_path / "out")

    def run_with(name: str, kill: bool = False) -> None:
        def write() -> TaskResult:
            file = shards.write_file(out, f"own/{name}.txt", b"x")
            if kill:
                raise KeyboardInterrupt
            return TaskResult(0, 1, files=(file,))

        stage, inputs = Stage("two", 1, ("own",)), {"list": name}
        with stage_run(
            stage,
            Config(),
            inputs={},
            output=out,
            options=RunOptions(),
            shard_inputs=inputs,
            global_phases=("names",),
        ) as run:
            run.map(lambda _: TaskResult(1, files=(shards.write_file(out, "own/all.txt", b"y"),)), [0], name=str)
            run.declare_outputs([f"own/{name}.txt"])
            run.once("names", write)
            run.finish()

    with pytest.raises(KeyboardInterrupt):
        run_with("a", kill=True)
    run_with("b")
    assert sorted(path.name for path in (tmp_path / "out" / "own").iterdir()) == ["all.txt", "b.txt"]


@pytest.mark.parametrize("left", [b"", bytes(99)])
def test_a_task_whose_entry_a_power_loss_left_empty_runs_again(tmp_path: Path, left: bytes) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "out", stop_after=3)
    (tmp_path / "out" / "_journal" / "shards--numbers-00001.json").write_bytes(left)
    assert run_numbers(tmp_path / "out")[1] == [10, 30]


def test_work_that_cannot_be_split_runs_in_a_worker_if_it_has_an_item(tmp_path: Path) -> None:
    options = RunOptions(executor=LocalExecutor(2))
    with stage_run(Stage("numbers", 1), Config(), inputs={}, output=str(tmp_path), options=options) as run:
        processes = [run.once("here", lambda: process_of(None)), run.once("there", process_of, "item")]
        assert [entry.name for entry in processes] == ["here", "there"]
        assert [entry.counts["process"] == os.getpid() for entry in processes] == [True, False]


def test_two_runs_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    stage = Stage("numbers", 1)
    with (
        stage_run(stage, Config(), inputs={}, output=str(tmp_path / "out"), options=RunOptions()),
        pytest.raises(LockedError, match=r"is being written by .*; wait for it, or choose another --output"),
        stage_run(stage, Config(), inputs={}, output=str(tmp_path / "out"), options=RunOptions()),
    ):
        pass


def test_a_lost_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match="40 records in, 35 out and 0 dropped, so 5 are unaccounted for"):
        run_numbers(tmp_path / "out", Config(least=5), lose=True)


def test_no_records_and_no_survivors_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the input contains no records"):
        run_numbers(tmp_path / "none", tasks=0)
    with pytest.raises(WebtextError, match=r"all 40 records were dropped \(too_low 40\)"):
        run_numbers(tmp_path / "all", Config(least=100))


def test_work_files_are_removed_at_the_end_and_rebuilt_for_a_damaged_result(tmp_path: Path) -> None:
    done: list[str] = []

    def first(task: Task) -> TaskResult:
        done.append("work")
        return TaskResult(1, files=(shards.write_file(task.output, f"_work/{task.name}", b"x"),))

    def second(task: Task) -> TaskResult:
        done.append("result")
        assert storage.exists(storage.join(task.output, "_work", task.name))
        return TaskResult(0, 1, files=(shards.write_file(task.output, task.name, b"y"),))

    def run_both() -> Summary:
        task = Task(1, str(tmp_path / "out"))
        with stage_run(Stage("two", 1), Config(), inputs={}, output=str(tmp_path / "out"), options=RunOptions()) as run:
            if not run.finished:
                run.map(first, [task], phase="first", work=True)
                run.map(second, [task])
            return run.finish()

    run_both()
    assert done == ["work", "result"]
    assert not (tmp_path / "out" / "_work").exists()
    run_both()
    assert len(done) == 2
    (tmp_path / "out" / "numbers-00000").write_bytes(b"z")
    run_both()
    assert done == ["work", "result"] * 2


def test_a_piece_of_work_that_failed_is_not_complete(tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "out", stop_after=3, options=RunOptions(progress=notes))
    run_numbers(tmp_path / "out", options=RunOptions(progress=notes))
    assert notes.ends == [False, True]


def test_resumed_tasks_do_not_count_in_a_total_of_other_units(tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "out", stop_after=3)
    run_numbers(tmp_path / "out", total=840, unit="submissions", options=RunOptions(progress=notes))
    assert notes.totals == [210]


def test_a_task_can_note_what_it_waits_for(tmp_path: Path) -> None:
    def wait() -> TaskResult:
        progress.note("no answer; tries again")
        return TaskResult(1, 1)

    notes = Notes()
    options = RunOptions(progress=notes)
    with stage_run(
        Stage("numbers", 1), Config(), inputs={"a": "1"}, output=str(tmp_path / "out"), options=options
    ) as run:
        run.once("listing", wait)
    progress.note("nobody listens")
    assert notes.notes == ["no answer; tries again"]


def test_nothing_is_written_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_numbers(tmp_path / "out")

    def refuse(folder: str, _note: Any = None) -> Any:
        raise StorageError(f"{folder}: cannot write: Permission denied")

    monkeypatch.setattr("pipelines.engine.run.folder_lock", refuse)
    (tmp_path / "out" / "numbers-00001.json").write_text("damaged")
    before = top_files(tmp_path / "out")
    for version in (1, 2):
        with pytest.raises(StorageError, match="Permission denied"):
            run_numbers(tmp_path / "out", version=version, options=RunOptions(overwrite=True))
    assert top_files(tmp_path / "out") == before


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_that_cannot_be_recorded_ends_as_it_would(tmp_path: Path, is_stopped: bool) -> None:
    (tmp_path / "runs.log").mkdir()
    (tmp_path / "numbers" / ".progress.json").mkdir(parents=True)
    notes = Notes()
    options = RunOptions(progress=notes)
    if is_stopped:  # the error of the stage is the one that is shown
        with pytest.raises(KeyboardInterrupt):
            run_numbers(tmp_path / "numbers", stop_after=2, options=options)
    else:
        assert run_numbers(tmp_path / "numbers", options=options)[0].records_out == 40
        assert (tmp_path / "numbers" / "manifest.json").exists()
    assert [note for note in notes.notes if "cannot record" in note] == [
        f"cannot record the run ({tmp_path}/numbers/.progress.json: cannot write: Is a directory)"
    ]
    notes.notes.clear()
    run_numbers(tmp_path / "numbers", options=RunOptions(overwrite=True, progress=notes), version=2)
    assert len([note for note in notes.notes if "runs.log" in note]) == 1
