"""Runs of a stage: finished work is kept, what differs is refused, what is damaged is named and rebuilt."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.core import progress, shards, storage
from pipelines.core.config import option
from pipelines.core.errors import (
    ChangedRunError,
    DamagedShardError,
    InputError,
    LockedError,
    StorageError,
    WebtextError,
)
from pipelines.core.inputs import open_stage
from pipelines.core.journal import OutputFolder
from pipelines.core.manifest import check_file, read_manifest
from pipelines.core.progress import Silent
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run


@dataclasses.dataclass(frozen=True)
class _Config:
    least: int = option(0, "Least number kept.")
    speed: int = option(1, "Speed.", identity=False)


@dataclasses.dataclass(frozen=True)
class _Task:
    number: int
    output: str
    least: int = 0
    lose: bool = False
    journal: str | None = None

    @property
    def name(self) -> str:
        return f"numbers-{self.number // 10:05d}"


def _write_numbers(task: _Task) -> TaskResult:
    """Write those of the numbers n, n+1, ... n+9 that are large enough."""
    kept = [number for number in range(task.number, task.number + 10) if number >= task.least]
    file = shards.write_file(task.output, f"{task.name}.json", json.dumps(kept).encode())
    dropped = {} if task.lose or len(kept) == 10 else {"too_low": 10 - len(kept)}
    return TaskResult(10, len(kept), dropped, {"sum": sum(kept)}, (file,))


class _Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.totals: list[int | None] = []
        self.ends: list[bool] = []

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.totals.append(total)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def finish(self, complete: bool) -> None:
        self.ends.append(complete)


def _run(
    output: Path,
    config: _Config | _ConfigWithRenamedOption | None = None,
    *,
    inputs: dict[str, str] | None = None,
    version: int = 1,
    tasks: int = 4,
    stop_after: int | None = None,
    lose: bool = False,
    options: RunOptions | None = None,
    writes: tuple[str, ...] = (),
    total: int | None = None,
    unit: str = "records",
) -> tuple[Summary, list[int]]:
    """Run the stage; return its summary and the numbers of the tasks that were really done."""
    config = config or _Config()
    done: list[int] = []

    def work(task: _Task) -> TaskResult:
        if stop_after is not None and len(done) >= stop_after:
            raise KeyboardInterrupt
        done.append(task.number)
        return _write_numbers(task)

    stage = Stage("numbers", version, writes)
    with stage_run(
        stage, config, inputs=inputs or {"a": "1"}, output=str(output), options=options or RunOptions()
    ) as run:
        if not run.finished:
            listed = [_Task(10 * number, run.output, config.least, lose) for number in range(tasks)]
            run.map(work, listed, total=total, unit=unit)
        return run.finish(), done


def _run_to(output: Path, finished: bool) -> None:
    """Finish a run, or interrupt it after two of its four tasks."""
    with contextlib.nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        _run(output, stop_after=None if finished else 2)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_finished_run_has_a_manifest_and_a_summary(tmp_path: Path) -> None:
    summary, done = _run(tmp_path / "out", _Config(least=5))
    assert done == [0, 10, 20, 30]
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (40, 35, {"too_low": 5})
    assert summary.to_json()["sum"] == sum(range(5, 40))
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest.identity.config == {"least": 5}
    assert [shard.name for shard in manifest.shards] == [f"numbers-0000{number}" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []


def test_a_second_run_does_nothing_and_says_the_same(tmp_path: Path) -> None:
    first, _ = _run(tmp_path / "out")
    before = _bytes(tmp_path / "out")
    second, done = _run(tmp_path / "out")
    assert done == []
    assert dataclasses.replace(second, seconds=first.seconds) == first
    assert _bytes(tmp_path / "out") == before


@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_an_interrupted_run_resumes_and_ends_with_the_same_bytes(tmp_path: Path, stop_after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "cut", stop_after=stop_after)
    with pytest.raises(InputError, match="numbers has not finished; re-run `webtext numbers`"):
        open_stage(str(tmp_path / "cut"), ["numbers"])
    _, done = _run(tmp_path / "cut")
    assert len(done) == 4 - stop_after
    _run(tmp_path / "whole")
    assert _bytes(tmp_path / "cut") == _bytes(tmp_path / "whole")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": _Config(least=3)}, "least was 0, is now 3"),
        ({"inputs": {"a": "2"}}, "its input 'a' has changed"),
        ({"inputs": {"a": "1", "b": "1"}}, "its input 'b' is new"),
        ({"version": 2}, "it was built by version 1 of the stage, this is version 2"),
    ],
)
def test_a_different_result_is_refused_unless_overwritten(
    tmp_path: Path, finished: bool, change: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    _run_to(out, finished)
    content = "a different result" if finished else "an unfinished run that differs"
    effect = "rebuild all of it [(]this result stays in use" if finished else "delete its work and start"
    with pytest.raises(ChangedRunError, match=f"contains {content}: {message}. Use --overwrite to {effect}"):
        _run(out, **change)
    _, done = _run(out, **change, options=RunOptions(overwrite=True))
    assert len(done) == 4


@dataclasses.dataclass(frozen=True)
class _ConfigWithNewOption(_Config):
    most: int = option(99, "Greatest number kept.")


@pytest.mark.parametrize("finished", [True, False])
def test_a_result_older_than_an_option_counts_as_built_with_its_default(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "out"
    _run_to(out, finished)
    with pytest.raises(ChangedRunError, match="most was 99, is now 50"):
        _run(out, _ConfigWithNewOption(most=50))
    assert len(_run(out, _ConfigWithNewOption())[1]) == (0 if finished else 2)


@dataclasses.dataclass(frozen=True)
class _ConfigWithRenamedOption:
    minimum: int = option(0, "Minimum number kept.", renamed_from="least")

    @property
    def least(self) -> int:
        return self.minimum


@pytest.mark.parametrize("finished", [True, False])
def test_a_result_older_than_the_name_of_an_option_is_kept(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "out"
    if finished:
        _run(out, _Config(least=5))
    else:
        with pytest.raises(KeyboardInterrupt):
            _run(out, _Config(least=5), stop_after=2)
    with pytest.raises(ChangedRunError, match="minimum was 5, is now 0"):
        _run(out, _ConfigWithRenamedOption())
    assert len(_run(out, _ConfigWithRenamedOption(minimum=5))[1]) == (0 if finished else 2)


def test_a_new_option_without_a_default_is_a_difference(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class RequiredOption(_Config):
        most: int = option(dataclasses.MISSING, "Greatest number kept.")

    _run(tmp_path / "out")
    with pytest.raises(ChangedRunError, match="most was not recorded, is now 99"):
        _run(tmp_path / "out", RequiredOption(most=99))


def test_overwrite_leaves_no_file_of_the_old_result(tmp_path: Path) -> None:
    _run(tmp_path / "out", tasks=6)
    _run(tmp_path / "out", tasks=2, version=2, options=RunOptions(overwrite=True))
    _run(tmp_path / "fresh", tasks=2, version=2)
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "fresh")


def test_overwrite_keeps_an_equal_result(tmp_path: Path) -> None:
    _run(tmp_path / "out")
    assert _run(tmp_path / "out", options=RunOptions(overwrite=True))[1] == []


class _Killed(BaseException):
    pass


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Have the `step`-th change of the disk stop the process; return the changes before it."""
    done: list[str] = []

    def patched(name: str) -> Callable[..., Any]:
        change = getattr(storage, name)

        def change_or_stop(*arguments: Any, **options: Any) -> Any:
            if len(done) == step:
                raise _Killed
            done.append(name)
            return change(*arguments, **options)

        return change_or_stop

    for name in ("atomic_write", "move", "remove"):
        monkeypatch.setattr(storage, name, patched(name))
    return done


def _whole(folder: Path) -> int:
    """Return the version of the result in a folder, after a check of all its files."""
    manifest = read_manifest(str(folder))
    assert not [problem for file in manifest.files if (problem := check_file(str(folder), file))]
    files = {name for name in _below(folder) if name[0] != "_"}
    assert files == {"manifest.json", *(file.name for file in manifest.files)}
    return manifest.identity.version


def test_an_overwrite_that_is_killed_at_any_moment_leaves_one_whole_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run_with_folder(tmp_path / "old", names=("x/a", "y/b"))
    fresh = _run_with_folder(tmp_path / "fresh", 2, names=("x/a", "z/c"))
    versions = []
    for step in range(100):
        out = tmp_path / f"out-{step}"
        shutil.copytree(tmp_path / "old", out)
        with monkeypatch.context() as patch:
            done = _kill_at(patch, step)
            try:
                _run_with_folder(out, 2, overwrite=True, names=("x/a", "z/c"))
                break
            except _Killed:
                pass
        gc.collect()  # a process that is really killed releases its lock
        # As a next stage reads it, and as a repeated command finds it.
        reader = tmp_path / f"reader-{step}"
        shutil.copytree(out, reader)
        versions.append(_whole(reader))
        assert _run_with_folder(out, 2, overwrite=True, names=("x/a", "z/c")) == fresh
    assert versions == sorted(versions)
    assert {1, 2} == set(versions)
    assert {"atomic_write", "move", "remove"} == set(done)


def test_an_overwrite_that_fails_keeps_the_old_result_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(out)
    with pytest.raises(KeyboardInterrupt):
        _run(out, version=2, options=RunOptions(overwrite=True), stop_after=3)
    assert read_manifest(str(out)).identity.version == 1
    assert _run(out)[1] == [], "the old result is complete"
    notes = _Notes()
    assert _run(out, version=2, options=RunOptions(overwrite=True, progress=notes))[1] == [30]
    assert "the earlier result stays until the new one is complete" in notes.notes[0]
    _run(tmp_path / "fresh", version=2)
    assert _bytes(out) == _bytes(tmp_path / "fresh")
    assert not (out / "_next").exists()


def test_an_unfinished_replacement_is_noted_by_a_run_of_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(out)
    with pytest.raises(KeyboardInterrupt):
        _run(out, _Config(least=5), options=RunOptions(overwrite=True), stop_after=3)
    notes = _Notes()
    assert _run(out, options=RunOptions(progress=notes))[1] == []
    assert notes.notes[0] == "numbers: already complete; checksums verified"
    assert re.search(
        r"out/_next: unfinished replacement of the result \(least was 0, is now 5\), started 2\d{3}-.*, 3 tasks "
        r"complete, \d.*; to complete it, re-run the `webtext numbers` .*; to discard it, delete this folder",
        notes.notes[1],
    )
    assert _run(out, _Config(least=5), options=RunOptions(overwrite=True))[1] == [30]
    assert OutputFolder(str(out)).describe_replacement() is None


def test_a_replacement_without_a_complete_task_is_removed_by_a_run_of_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(out)
    with pytest.raises(KeyboardInterrupt):
        _run(out, version=2, options=RunOptions(overwrite=True), stop_after=0)
    assert (out / "_next").exists()
    notes = _Notes()
    _run(out, options=RunOptions(progress=notes))
    assert notes.notes == ["numbers: already complete; checksums verified"]
    assert not (out / "_next").exists()


def test_a_damaged_header_says_what_to_delete_since_overwrite_would_not_help(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run_to(out, finished=False)
    (out / "_journal" / "run.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=rf"run\.json: is not the header of a run .*; delete {out} and re-run"):
            _run(out, options=RunOptions(overwrite=overwrite))


def test_an_overwrite_in_which_everything_is_dropped_keeps_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(out)
    before = _bytes(out)
    with pytest.raises(WebtextError, match="all 40 records were dropped"):
        _run(out, _Config(least=100), options=RunOptions(overwrite=True))
    assert _bytes(out) == before
    _run(out, _Config(least=5), options=RunOptions(overwrite=True))
    _run(tmp_path / "fresh", _Config(least=5))
    assert _bytes(out) == _bytes(tmp_path / "fresh")


@pytest.mark.parametrize("finished", [True, False])
def test_overwrite_never_removes_files_of_others(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "out"
    _run_to(out, finished)
    (out / "my-notes.txt").write_text("mine")
    before = _bytes(out)
    with pytest.raises(InputError, match=r"my-notes\.txt: was not written by this stage, so --overwrite keeps it"):
        _run(out, version=2, options=RunOptions(overwrite=True))
    assert _bytes(out) == before


def test_overwrite_removes_a_shard_that_a_killed_run_had_not_listed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        _run(out, stop_after=2)
    for name in ("documents-00007.parquet", "pages-00001.warc.gz", "train-00002-documents.parquet", "extra.json"):
        (out / name).write_bytes(b"x")
    _run(out, version=2, options=RunOptions(overwrite=True), writes=("extra.json",))
    assert {path.name for path in out.iterdir()} == {
        "manifest.json",
        ".lock",
        *(f"numbers-0000{n}.json" for n in range(4)),
    }


def _run_with_folder(
    output: Path, version: int = 1, *, killed: bool = False, overwrite: bool = False, names: tuple[str, ...] = ("x/a",)
) -> dict[str, bytes]:
    """Run a stage that writes `own/x/a.txt` and so on; return all that is in the folder then, hidden files left out."""

    def write() -> TaskResult:
        files = [shards.write_file(run.output, f"own/{name}.txt", name.encode()) for name in names]
        if killed:
            raise KeyboardInterrupt
        return TaskResult(1, 1, files=tuple(files))

    stage, options = Stage("numbers", version, ("own",)), RunOptions(overwrite=overwrite)
    with stage_run(stage, _Config(), inputs={"a": "1"}, output=str(output), options=options) as run:
        if not run.finished:
            run.declare_outputs([f"own/{name}.txt" for name in names])
            run.once("write", write)
        run.finish()
    return _below(output)


def _below(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_temporaries_in_folders_of_the_stage_are_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run_with_folder(tmp_path, killed=True)
    for folder in ("own", "own/x"):
        (tmp_path / folder / "a.txt.tmp-99-0").write_text("half")
    assert set(_run_with_folder(tmp_path)) == {"manifest.json", "own/x/a.txt"}


def test_overwrite_keeps_foreign_files_in_folders_of_the_stage(tmp_path: Path) -> None:
    _run_with_folder(tmp_path)
    (tmp_path / "own" / "x" / "notes.txt").write_text("mine")
    before = _below(tmp_path)
    with pytest.raises(InputError, match=r"own/x/notes\.txt: was not written by this stage, so --overwrite keeps it"):
        _run_with_folder(tmp_path, 2, overwrite=True)
    assert _below(tmp_path) == before
    (tmp_path / "own" / "x" / "notes.txt").unlink()
    assert set(_run_with_folder(tmp_path, 2, overwrite=True, names=("y/b",))) == {"manifest.json", "own/y/b.txt"}


def test_overwrite_knows_files_in_folders_of_a_run_killed_before_it_listed_them(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run_with_folder(tmp_path, killed=True)
    (tmp_path / "_journal" / "write--write.json.tmp-99-0").write_text("{")
    assert set(_run_with_folder(tmp_path, 2, overwrite=True, names=("z/c",))) == {"manifest.json", "own/z/c.txt"}


def test_a_folder_named_with_a_slash_belongs_to_the_stage(tmp_path: Path) -> None:
    _run(tmp_path, writes=("own/",))
    (tmp_path / "own" / "x").mkdir(parents=True)
    (tmp_path / "own" / "x" / "b.txt").write_text("not listed")
    (tmp_path / "own" / "x" / "c.txt.tmp-99-0").write_text("half")
    _run(tmp_path, writes=("own/",))
    assert [path.name for path in (tmp_path / "own" / "x").iterdir()] == ["b.txt"]
    _run(tmp_path, version=2, writes=("own/",), options=RunOptions(overwrite=True))
    assert not (tmp_path / "own").exists()


def test_a_damaged_file_in_a_folder_of_the_stage_still_belongs_to_it(tmp_path: Path) -> None:
    _run_with_folder(tmp_path)
    whole = _below(tmp_path)
    (tmp_path / "own/x/a.txt").write_text("other")
    assert _run_with_folder(tmp_path) == whole


def test_a_run_in_which_everything_was_dropped_is_retried(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(
            WebtextError, match=r"all 40 records were dropped.*or re-run the same command if the cause has passed"
        ):
            _run(tmp_path / "out", _Config(least=100))
    assert [path.name for path in (tmp_path / "out" / "_journal").iterdir()] == ["run.json"]


def test_progress_counts_what_remains(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out", stop_after=3)
    notes = _Notes()
    _run(tmp_path / "out", options=RunOptions(progress=notes), total=40)
    assert notes.totals == [10]
    assert notes.notes == ["numbers: shards: resuming; 3 of 4 tasks already complete"]


def test_speed_may_change_between_runs(tmp_path: Path) -> None:
    _run(tmp_path / "out")
    assert _run(tmp_path / "out", _Config(speed=9))[1] == []


def test_a_first_attempt_without_results_is_replaced(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out", inputs={"a": "the wrong file"}, stop_after=0)
    assert len(_run(tmp_path / "out", inputs={"a": "the right file"})[1]) == 4
    _run(tmp_path / "fresh", inputs={"a": "the right file"})
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "fresh")


def test_options_may_change_after_a_run_in_which_everything_was_dropped(tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match="all 40 records were dropped"):
        _run(tmp_path / "out", _Config(least=100), tasks=4)
    assert (tmp_path / "out" / "numbers-00003.json").exists(), "the files are kept to see what was dropped"
    assert len(_run(tmp_path / "out", tasks=2)[1]) == 2
    _run(tmp_path / "fresh", tasks=2)
    assert _bytes(tmp_path / "out") == _bytes(tmp_path / "fresh")


def test_options_may_not_change_after_a_finished_task(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out", stop_after=1)
    with pytest.raises(ChangedRunError, match="an unfinished run that differs"):
        _run(tmp_path / "out", _Config(least=5))


def test_a_first_attempt_without_results_keeps_files_of_others(tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match="all 40 records were dropped"):
        _run(tmp_path / "out", _Config(least=100))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ChangedRunError):
        _run(tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").exists()


def test_shards_without_a_manifest_are_not_trusted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run(out)
    (out / "manifest.json").write_text("garbage")
    with pytest.raises(InputError, match=r"manifest\.json: is not valid JSON .* move .*out away and re-run the stage"):
        _run(out)
    (out / "manifest.json").unlink()
    with pytest.raises(
        InputError, match=r"out: contains numbers-00000\.json, \.\.\. but no manifest.* move the folder away"
    ):
        _run(out)


def test_a_folder_not_written_by_webtext_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for options in (RunOptions(), RunOptions(overwrite=True)):
        with pytest.raises(InputError, match=r"is not empty \(thesis.tex, ...\) and was not written by webtext"):
            _run(tmp_path, options=options)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_damaged_shard_is_named_and_rebuilt(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    _run(out)
    before = _bytes(out)
    shard = out / "numbers-00002.json"
    if damage == "missing":
        shard.unlink()
    else:
        data = shard.read_bytes()
        shard.write_bytes(data[:-1] if damage == "shorter" else data.replace(b"2", b"3"))
    words = "is missing" if damage == "missing" else "is damaged"
    with pytest.raises(DamagedShardError, match=rf"numbers-00002\.json: {words}.*re-run `webtext numbers`"):
        open_stage(str(out), ["numbers"]).file("numbers-00002.json").verify()
    notes = _Notes()
    _, done = _run(out, options=RunOptions(progress=notes))
    assert done == [20]
    assert f"numbers-00002.json: {words}" in notes.notes[0]
    assert notes.notes[1:] == ["numbers: shards: resuming; 3 of 4 tasks already complete"]
    assert _bytes(out) == before


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
            _Config(),
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


def test_two_runs_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    stage = Stage("numbers", 1)
    with (
        stage_run(stage, _Config(), inputs={}, output=str(tmp_path / "out"), options=RunOptions()),
        pytest.raises(LockedError, match="is writing it; wait until it finishes, or choose another --output"),
        stage_run(stage, _Config(), inputs={}, output=str(tmp_path / "out"), options=RunOptions()),
    ):
        pass


def test_a_lost_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match="40 records in, 35 out and 0 dropped leave 5 unexplained"):
        _run(tmp_path / "out", _Config(least=5), lose=True)


def test_no_records_and_no_survivors_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the input contains no records"):
        _run(tmp_path / "none", tasks=0)
    with pytest.raises(WebtextError, match=r"all 40 records were dropped \(too_low 40\)"):
        _run(tmp_path / "all", _Config(least=100))


def test_work_files_are_removed_at_the_end_and_rebuilt_for_a_damaged_result(tmp_path: Path) -> None:
    done: list[str] = []

    def first(task: _Task) -> TaskResult:
        done.append("work")
        return TaskResult(1, files=(shards.write_file(task.output, f"_work/{task.name}", b"x"),))

    def second(task: _Task) -> TaskResult:
        done.append("result")
        assert storage.exists(storage.join(task.output, "_work", task.name))
        return TaskResult(0, 1, files=(shards.write_file(task.output, task.name, b"y"),))

    def run_both() -> Summary:
        task = _Task(1, str(tmp_path / "out"))
        with stage_run(
            Stage("two", 1), _Config(), inputs={}, output=str(tmp_path / "out"), options=RunOptions()
        ) as run:
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


def test_a_manifest_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(InputError, match=r"manifest\.json: is not a manifest of webtext"):
        read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="has format 99, this version reads 1"):
        read_manifest(str(tmp_path))


def test_the_folder_of_another_stage_is_refused(tmp_path: Path) -> None:
    _run(tmp_path / "out")
    with pytest.raises(InputError, match="is the output of numbers, expected scrape"):
        open_stage(str(tmp_path / "out"), ["scrape"])
    with pytest.raises(InputError, match="nowhere: no such folder; run `webtext scrape` first"):
        open_stage(str(tmp_path / "nowhere"), ["scrape"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match="bare: has no manifest, so it is not the output of scrape"):
        open_stage(str(tmp_path / "bare"), ["scrape"])


def test_a_piece_of_work_that_failed_is_not_complete(tmp_path: Path) -> None:
    notes = _Notes()
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out", stop_after=3, options=RunOptions(progress=notes))
    _run(tmp_path / "out", options=RunOptions(progress=notes))
    assert notes.ends == [False, True]


def test_resumed_tasks_do_not_count_in_a_total_of_other_units(tmp_path: Path) -> None:
    notes = _Notes()
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "out", stop_after=3)
    _run(tmp_path / "out", total=840, unit="submissions", options=RunOptions(progress=notes))
    assert notes.totals == [210]


def test_a_task_can_note_what_it_waits_for(tmp_path: Path) -> None:
    def wait() -> TaskResult:
        progress.note("no answer; tries again")
        return TaskResult(1, 1)

    notes = _Notes()
    options = RunOptions(progress=notes)
    with stage_run(
        Stage("numbers", 1), _Config(), inputs={"a": "1"}, output=str(tmp_path / "out"), options=options
    ) as run:
        run.once("listing", wait)
    progress.note("nobody listens")
    assert notes.notes == ["no answer; tries again"]


def test_a_finished_result_is_verified_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path / "out")

    def refuse(folder: str) -> Any:
        raise StorageError(f"{folder}: cannot write: Read-only file system")

    monkeypatch.setattr("pipelines.core.run.folder_lock", refuse)
    assert _run(tmp_path / "out")[1] == []
    with pytest.raises(ChangedRunError):
        _run(tmp_path / "out", version=2)
    with pytest.raises(StorageError, match="Read-only file system"):
        _run(tmp_path / "new")


def test_an_overwrite_in_an_object_store_moves_files_one_by_one() -> None:
    out = f"memory://overwrite-{os.getpid()}"

    def run(version: int, names: tuple[str, ...]) -> None:
        def write() -> TaskResult:
            files = [shards.write_file(run_.output, name, f"{version}".encode()) for name in names]
            return TaskResult(1, 1, files=tuple(files))

        stage, options = Stage("numbers", version, ("own",)), RunOptions(overwrite=True)
        with stage_run(stage, _Config(), inputs={}, output=out, options=options) as run_:
            run_.declare_outputs([name for name in names if "/" in name])
            run_.once("write", write)
            run_.finish()

    run(1, ("own/x/a.txt", "own/b.txt"))
    run(2, ("own/x/a.txt", "own/y/c.txt", "numbers-00000.json"))
    names = [path.partition(out.rpartition("/")[2])[2].lstrip("/") for path in storage.walk_files(out)]
    assert names == ["manifest.json", "numbers-00000.json", "own/x/a.txt", "own/y/c.txt"]
    assert storage.read_bytes(f"{out}/own/x/a.txt") == b"2"


def test_a_replacement_that_cannot_be_completed_is_no_lock_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path / "out")

    def stop(*_: object) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.core.manifest.complete_replacement", stop)
        with pytest.raises(_Killed):
            _run(tmp_path / "out", version=2, options=RunOptions(overwrite=True))

    def refuse(source: str, target: str) -> None:
        raise StorageError(f"{target}: cannot write: No space left on device")

    monkeypatch.setattr(storage, "move", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        _run(tmp_path / "out", version=2)


def _refuse_input(output: Path, options: RunOptions | None = None, name: str = "documents") -> None:
    """Do the four tasks, or those that remain, and refuse the input of this name."""
    stage, options = Stage("numbers", 1), options or RunOptions()
    with stage_run(stage, _Config(), inputs={name: "1"}, output=str(output), options=options) as run:
        run.map(_write_numbers, [_Task(10 * number, run.output) for number in range(4)])
        raise InputError("no numbers")


@pytest.mark.parametrize("attempt", ["first", "resumed"])
def test_an_attempt_whose_documents_are_refused_does_not_block_others(tmp_path: Path, attempt: str) -> None:
    if attempt == "resumed":
        with pytest.raises(KeyboardInterrupt):
            _run(tmp_path / "out", inputs={"documents": "1"}, stop_after=2)
    with pytest.raises(InputError, match="no numbers"):
        _refuse_input(tmp_path / "out")
    assert _run(tmp_path / "out", inputs={"documents": "2"})[1] == [0, 10, 20, 30]


@pytest.mark.parametrize("name", ["documents", "listings"])
def test_an_attempt_whose_input_is_refused_resumes_with_the_same_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no numbers"):
        _refuse_input(tmp_path / "out", name=name)
    assert _run(tmp_path / "out", inputs={name: "1"})[1] == []


def test_what_was_asked_of_a_server_is_not_lost_to_another_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no numbers"):
        _refuse_input(tmp_path / "out", name="listings")
    with pytest.raises(ChangedRunError):
        _run(tmp_path / "out", inputs={"listings": "2"})


@pytest.mark.parametrize("content", ["link", "manifest", "names"])
def test_a_replacement_from_elsewhere_removes_nothing_outside(tmp_path: Path, content: str) -> None:
    _run(tmp_path / "out")
    _run(tmp_path / "other")
    _run(tmp_path / "victim")
    (tmp_path / "victim" / ".hidden").write_text("kept")
    folder = tmp_path / "out" / "_next"
    if content == "link":
        folder.symlink_to(tmp_path / "victim")
    else:
        folder.mkdir()
        (folder / ".replaced.json").write_text('["numbers-00000.json/../../../victim"]')
        (folder / "manifest.json").write_bytes((tmp_path / "other" / "manifest.json").read_bytes())
    if content == "manifest":
        (folder / "manifest.json").write_text("{}")
    before = _bytes(tmp_path / "victim"), _bytes(tmp_path / "out")
    with pytest.raises(InputError):
        read_manifest(str(tmp_path / "out"))
    assert (_bytes(tmp_path / "victim"), _bytes(tmp_path / "out")) == before


def test_a_replacement_is_completed_although_the_earlier_result_is_being_repaired(tmp_path: Path) -> None:
    out, overwrite = tmp_path / "out", RunOptions(overwrite=True)
    _run(out, version=1)
    with pytest.raises(KeyboardInterrupt):
        _run(out, version=2, stop_after=2, options=overwrite)
    (out / "numbers-00002.json").unlink()
    with pytest.raises(KeyboardInterrupt):
        _run(out, version=1, stop_after=0)
    assert _run(out, version=2, options=overwrite)[1] == [20, 30]
    assert read_manifest(str(out)).identity.version == 2
    assert not (out / "_next").exists()


def test_nothing_is_written_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path / "out")

    def refuse(folder: str) -> Any:
        raise StorageError(f"{folder}: cannot write: Permission denied")

    monkeypatch.setattr("pipelines.core.run.folder_lock", refuse)
    (tmp_path / "out" / "numbers-00001.json").write_text("damaged")
    before = _bytes(tmp_path / "out")
    for version in (1, 2):
        with pytest.raises(StorageError, match="Permission denied"):
            _run(tmp_path / "out", version=version, options=RunOptions(overwrite=True))
    assert _bytes(tmp_path / "out") == before


def test_a_refused_replacement_keeps_the_earlier_result(tmp_path: Path) -> None:
    _run(tmp_path / "out", inputs={"a": "2"})
    before = _bytes(tmp_path / "out")
    with pytest.raises(InputError, match="no numbers"):
        _refuse_input(tmp_path / "out", RunOptions(overwrite=True))
    assert _bytes(tmp_path / "out") == before
    assert _run(tmp_path / "out", inputs={"a": "2"})[1] == []
