"""--overwrite: the earlier result is kept until the new one is complete; files of others stay."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numbers_run import (
    Config,
    Killed,
    Notes,
    Task,
    files_below,
    refuse_input,
    run_numbers,
    run_to,
    run_with_folder,
    top_files,
    write_numbers,
)

from pipelines import storage
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import check_file, read_manifest
from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.engine.run_decision import DryRun
from pipelines.errors import (
    InputError,
    StorageError,
    WebtextError,
)
from pipelines.records import shards


def test_overwrite_leaves_no_file_of_the_old_result(tmp_path: Path) -> None:
    run_numbers(tmp_path / "out", tasks=6)
    run_numbers(tmp_path / "out", tasks=2, version=2, options=RunOptions(overwrite=True))
    run_numbers(tmp_path / "fresh", tasks=2, version=2)
    assert top_files(tmp_path / "out") == top_files(tmp_path / "fresh")


def test_overwrite_keeps_an_equal_result(tmp_path: Path) -> None:
    run_numbers(tmp_path / "out")
    assert run_numbers(tmp_path / "out", options=RunOptions(overwrite=True))[1] == []


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Have the `step`-th change of the disk stop the process; return the changes before it."""
    done: list[str] = []

    def patched(name: str) -> Callable[..., Any]:
        change = getattr(storage, name)

        def change_or_stop(*arguments: Any, **options: Any) -> Any:
            if len(done) == step:
                raise Killed
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
    files = {name for name in files_below(folder) if name[0] != "_"}
    assert files == {"manifest.json", *(file.name for file in manifest.files)}
    return manifest.identity.version


def test_an_overwrite_that_is_killed_at_any_moment_leaves_one_whole_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_folder(tmp_path / "old", names=("x/a", "y/b"))
    fresh = run_with_folder(tmp_path / "fresh", 2, names=("x/a", "z/c"))
    versions = []
    for step in range(100):
        out = tmp_path / f"out-{step}"
        shutil.copytree(tmp_path / "old", out)
        with monkeypatch.context() as patch:
            done = _kill_at(patch, step)
            try:
                run_with_folder(out, 2, overwrite=True, names=("x/a", "z/c"))
                break
            except Killed:
                pass
        gc.collect()  # a process that is really killed releases its lock
        # As a next stage reads it, and as a repeated command finds it.
        reader = tmp_path / f"reader-{step}"
        shutil.copytree(out, reader)
        versions.append(_whole(reader))
        assert run_with_folder(out, 2, overwrite=True, names=("x/a", "z/c")) == fresh
    assert versions == sorted(versions)
    assert {1, 2} == set(versions)
    assert {"atomic_write", "move", "remove"} == set(done)


def test_an_overwrite_that_fails_keeps_the_old_result_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_numbers(out)
    with pytest.raises(KeyboardInterrupt):
        run_numbers(out, version=2, options=RunOptions(overwrite=True), stop_after=3)
    assert read_manifest(str(out)).identity.version == 1
    assert run_numbers(out)[1] == [], "the old result is complete"
    (out / "_next" / "_journal" / "write--write.json.tmp-99-0").write_text("")  # of a killed run
    notes = Notes()
    assert run_numbers(out, version=2, options=RunOptions(overwrite=True, progress=notes))[1] == [30]
    assert "is kept until the new one is complete" in notes.notes[0]
    run_numbers(tmp_path / "fresh", version=2)
    assert top_files(out) == top_files(tmp_path / "fresh")
    assert not (out / "_next").exists()


def test_an_unfinished_replacement_is_noted_by_a_run_of_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_numbers(out)
    with pytest.raises(KeyboardInterrupt):
        run_numbers(out, Config(least=5), options=RunOptions(overwrite=True), stop_after=3)
    notes = Notes()
    assert run_numbers(out, options=RunOptions(progress=notes))[1] == []
    assert notes.notes[0] == "numbers: already complete; checksums verified"
    assert re.search(
        r"out/_next: unfinished replacement of the result \(least was 0, is now 5\), started 2\d{3}-.*, 3 tasks "
        r"complete, \d.*; to complete it, re-run the `webtext numbers` .*; to discard it, delete this folder",
        notes.notes[1],
    )
    assert run_numbers(out, Config(least=5), options=RunOptions(overwrite=True))[1] == [30]
    assert OutputFolder(str(out)).describe_replacement() is None


def test_a_discarded_replacement_is_compared_with_this_run(tmp_path: Path) -> None:
    def reasons(least: int, stop_after: int) -> list[str]:
        notes = Notes()
        options = RunOptions(overwrite=True, progress=notes)
        with pytest.raises(KeyboardInterrupt):
            run_numbers(tmp_path, Config(least=least), options=options, stop_after=stop_after)
        return [note.partition("(")[2] for note in notes.notes if note.endswith(")")]

    run_numbers(tmp_path)
    assert reasons(1, 1) == ["least was 0, is now 1)"]
    assert reasons(2, 0) == ["least was 1, is now 2)", "least was 0, is now 2)"]
    assert reasons(2, 1) == ["least was 0, is now 2)"]  # without a number of tasks, since none is complete
    assert reasons(2, 0) == ["least was 0, is now 2; 1 task already complete)"]


def test_a_replacement_without_a_complete_task_is_removed_by_a_run_of_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_numbers(out)
    with pytest.raises(KeyboardInterrupt):
        run_numbers(out, version=2, options=RunOptions(overwrite=True), stop_after=0)
    assert (out / "_next").exists()
    notes = Notes()
    run_numbers(out, options=RunOptions(progress=notes))
    assert notes.notes == ["numbers: already complete; checksums verified"]
    assert not (out / "_next").exists()


def test_an_overwrite_in_which_everything_is_dropped_keeps_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_numbers(out)
    before = top_files(out)
    with pytest.raises(WebtextError, match="all 40 records were dropped"):
        run_numbers(out, Config(least=100), options=RunOptions(overwrite=True))
    assert top_files(out) == before
    run_numbers(out, Config(least=5), options=RunOptions(overwrite=True))
    run_numbers(tmp_path / "fresh", Config(least=5))
    assert top_files(out) == top_files(tmp_path / "fresh")


@pytest.mark.parametrize("finished", [True, False])
def test_overwrite_never_removes_files_of_others(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "out"
    run_to(out, finished)
    (out / "my-notes.txt").write_text("mine")
    before = top_files(out)
    with pytest.raises(InputError, match=r"my-notes\.txt: was not written by this stage, so --overwrite keeps it"):
        run_numbers(out, version=2, options=RunOptions(overwrite=True))
    assert top_files(out) == before


def test_overwrite_removes_a_shard_that_a_killed_run_had_not_listed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_numbers(out, stop_after=2)
    for name in ("documents-00007.parquet", "pages-00001.warc.gz", "train-00002-documents.parquet", "extra.json"):
        (out / name).write_bytes(b"x")
    run_numbers(out, version=2, options=RunOptions(overwrite=True), writes=("extra.json",))
    assert {path.name for path in out.iterdir()} == {
        "manifest.json",
        ".lock",
        *(f"numbers-0000{n}.json" for n in range(4)),
    }


def test_overwrite_keeps_foreign_files_in_folders_of_the_stage(tmp_path: Path) -> None:
    run_with_folder(tmp_path)
    (tmp_path / "own" / "x" / "notes.txt").write_text("mine")
    before = files_below(tmp_path)
    with pytest.raises(InputError, match=r"own/x/notes\.txt: was not written by this stage, so --overwrite keeps it"):
        run_with_folder(tmp_path, 2, overwrite=True)
    assert files_below(tmp_path) == before
    (tmp_path / "own" / "x" / "notes.txt").unlink()
    assert set(run_with_folder(tmp_path, 2, overwrite=True, names=("y/b",))) == {"manifest.json", "own/y/b.txt"}


def test_overwrite_knows_files_in_folders_of_a_run_killed_before_it_listed_them(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_with_folder(tmp_path, killed=True)
    (tmp_path / "_journal" / "write--write.json.tmp-99-0").write_text("{")
    assert set(run_with_folder(tmp_path, 2, overwrite=True, names=("z/c",))) == {"manifest.json", "own/z/c.txt"}


def test_an_overwrite_in_an_object_store_moves_files_one_by_one() -> None:
    out = f"memory://overwrite-{os.getpid()}"

    def run(version: int, names: tuple[str, ...]) -> None:
        def write() -> TaskResult:
            files = [shards.write_file(run_.output, name, f"{version}".encode()) for name in names]
            return TaskResult(1, 1, files=tuple(files))

        stage, options = Stage("numbers", version, ("own",)), RunOptions(overwrite=True)
        with stage_run(stage, Config(), inputs={}, output=out, options=options) as run_:
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
    run_numbers(tmp_path / "out")

    def stop(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.engine.manifest.complete_replacement", stop)
        with pytest.raises(Killed):
            run_numbers(tmp_path / "out", version=2, options=RunOptions(overwrite=True))

    def refuse(source: str, target: str) -> None:
        raise StorageError(f"{target}: cannot write: No space left on device")

    monkeypatch.setattr(storage, "move", refuse)
    with pytest.raises(StorageError, match="No space left on device"):
        run_numbers(tmp_path / "out", version=2)


@pytest.mark.parametrize("content", ["link", "manifest", "names"])
def test_a_replacement_from_elsewhere_removes_nothing_outside(tmp_path: Path, content: str) -> None:
    run_numbers(tmp_path / "out")
    run_numbers(tmp_path / "other")
    run_numbers(tmp_path / "victim")
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
    before = top_files(tmp_path / "victim"), top_files(tmp_path / "out")
    with pytest.raises(InputError):
        read_manifest(str(tmp_path / "out"))
    assert (top_files(tmp_path / "victim"), top_files(tmp_path / "out")) == before


def test_a_replacement_is_completed_although_the_earlier_result_is_being_repaired(tmp_path: Path) -> None:
    out, overwrite = tmp_path / "out", RunOptions(overwrite=True)
    run_numbers(out, version=1)
    with pytest.raises(KeyboardInterrupt):
        run_numbers(out, version=2, stop_after=2, options=overwrite)
    (out / "numbers-00002.json").unlink()
    with pytest.raises(KeyboardInterrupt):
        run_numbers(out, version=1, stop_after=0)
    assert run_numbers(out, version=2, options=overwrite)[1] == [20, 30]
    assert read_manifest(str(out)).identity.version == 2
    assert not (out / "_next").exists()


def test_a_refused_replacement_keeps_the_earlier_result(tmp_path: Path) -> None:
    run_numbers(tmp_path / "out", inputs={"a": "2"})
    before = top_files(tmp_path / "out")
    with pytest.raises(InputError, match="no numbers"):
        refuse_input(tmp_path / "out", RunOptions(overwrite=True))
    assert top_files(tmp_path / "out") == before
    assert run_numbers(tmp_path / "out", inputs={"a": "2"})[1] == []


@pytest.mark.parametrize("discards_pages", [False, True])
def test_a_dry_run_decides_as_the_run_does_whether_it_adds(tmp_path: Path, discards_pages: bool) -> None:
    stage, out = Stage("numbers", 1, is_irreplaceable=True, grows=("a",)), str(tmp_path / "out")
    earlier = []
    for content in ("1", "2"):
        options = RunOptions(overwrite=True, discard_pages=discards_pages)
        dry = dataclasses.replace(options, dry_run=True)
        with (
            pytest.raises(DryRun) as planned,
            stage_run(stage, Config(), inputs={"a": content}, output=out, options=dry),
        ):
            pass
        with stage_run(stage, Config(), inputs={"a": content}, output=out, options=options) as run:
            earlier.append(run.earlier)
            run.map(write_numbers, [Task(0, run.output)])
            run.finish()
    assert earlier == [None, None if discards_pages else out]
    assert planned.value.decision.action == ("rebuild" if discards_pages else "add")
