"""Storage: files appear whole or not at all, errors name the file, a folder has one writer."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines import storage
from pipelines.engine import lease
from pipelines.engine.folder_lock import folder_lock
from pipelines.errors import InputError, LockedError, StorageError
from pipelines.storage import files
from pipelines.storage.object_store import ObjectStore


@pytest.fixture(params=["local", "memory", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder on the local disk, one of a file system of fsspec, and one of an object store."""
    if request.param == "s3":
        monkeypatch.setattr(lease, "SECONDS", 1.0)
        return f"{request.getfixturevalue('bucket')}/folder"
    return str(tmp_path / "folder") if request.param == "local" else f"memory://{tmp_path.name}-{os.getpid()}"


def test_a_file_appears_only_when_the_block_ends(folder: str) -> None:
    path = storage.join(folder, "a.bin")
    with storage.atomic_write(path) as writer:
        writer.write(b"half")
        assert not storage.exists(path)
    assert storage.read_bytes(path) == b"half"
    assert storage.list_folder(folder) == ["a.bin"]


def test_a_failed_write_keeps_the_old_file_and_no_temporary(folder: str) -> None:
    path = storage.join(folder, "a.bin")
    storage.write_bytes(path, b"old")

    def fail() -> None:
        with storage.atomic_write(path) as writer:
            writer.write(b"new")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert storage.read_bytes(path) == b"old"
    assert storage.list_folder(folder) == ["a.bin"]


def test_the_writer_counts_and_hashes_what_it_wrote(folder: str) -> None:
    path = storage.join(folder, "a.bin")
    with storage.atomic_write(path) as writer:
        writer.write(b"some ")
        writer.write(memoryview(b"bytes"))
    assert writer.size_bytes == storage.size_bytes(path) == 10
    assert writer.checksum == storage.sha256_of(path) == hashlib.sha256(b"some bytes").hexdigest()


def test_equal_values_are_equal_json_bytes(folder: str) -> None:
    one, two = storage.join(folder, "1.json"), storage.join(folder, "2.json")
    storage.write_json(one, {"b": 1, "a": "é"})
    storage.write_json(two, {"a": "é", "b": 1})
    assert storage.read_bytes(one) == storage.read_bytes(two)
    assert storage.read_json(one) == {"a": "é", "b": 1}


def test_globs_and_walks_are_sorted_and_skip_hidden_names(folder: str) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt", ".hidden/d.txt"):
        storage.write_bytes(storage.join(folder, name), b"x")
    assert [storage.basename(path) for path in storage.glob(storage.join(folder, "*.txt"))] == ["a.txt", "b.txt"]
    assert [storage.basename(path) for path in storage.walk_files(folder)] == ["a.txt", "b.txt", "c.txt"]


def test_walks_leave_out_what_is_not_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to("a.txt")
    os.mkfifo(tmp_path / "deep" / "pipe.txt")
    for name, target in (("pipe", "deep/pipe.txt"), ("broken", "missing"), ("device", "/dev/zero")):
        (tmp_path / f"{name}.txt").symlink_to(target)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.path.relpath(tmp_path / "socket.txt"))  # of limited length
        assert [storage.basename(path) for path in storage.walk_files(str(tmp_path))] == ["a.txt", "link.txt"]
    with pytest.raises(InputError, match=r"pipe\.txt: is not a regular file"):
        storage.content_fingerprint(str(tmp_path / "pipe.txt"))


def test_an_existing_name_with_brackets_is_not_a_glob(tmp_path: Path) -> None:
    path = str(tmp_path / "docs[v2].jsonl")
    assert storage.is_glob(path)
    storage.write_bytes(path, b"x")
    assert not storage.is_glob(path)


def test_bytes_of_a_name_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_bytes(b"x")
    assert storage.basename(str(tmp_path / name)) == r"caf\xe9.txt"
    (listed,) = storage.list_folder(str(tmp_path))
    assert storage.read_bytes(storage.join(str(tmp_path), listed)) == b"x"


@pytest.mark.parametrize("start", [0, 1, 7, 200_000, 299_999, 300_000, -1, -70_000, -299_999, -300_000, -400_000])
def test_a_file_is_read_from_any_position(folder: str, start: int) -> None:
    data = random.Random(1).randbytes(300_000)
    storage.write_bytes(f"{folder}/data", data)
    with storage.open_read(f"{folder}/data", start=start) as stream:
        assert stream.read() == (data[start:] if start else data)
        stream.seek(5)
        assert stream.read(100_000) == data[5:100_005]


def test_an_empty_file_is_read_from_its_end(folder: str) -> None:
    storage.write_bytes(f"{folder}/data", b"")
    with storage.open_read(f"{folder}/data", start=-8) as stream:
        assert stream.read() == b""


@pytest.mark.parametrize("folder", ["local"], indirect=True)
def test_lines_of_several_writers_are_all_appended(folder: str) -> None:
    storage.make_folder(folder)
    lines = [f"line {number}" for number in range(20)]
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda line: storage.append_line(f"{folder}/runs.log", line), lines))
    assert sorted(storage.read_bytes(f"{folder}/runs.log").decode().splitlines()) == sorted(lines)


@pytest.mark.parametrize("folder", ["s3"], indirect=True)
def test_a_line_is_appended_to_an_object_that_others_write_meanwhile(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fixed order: moto checks the condition of a request and writes in two steps, so threads could lose lines."""
    path, others, read_version = f"{folder}/runs.log", ["first", "second"], ObjectStore.read_version

    def read_before_another_writes(store: ObjectStore, name: str) -> Any:
        result = read_version(store, name)
        if others:
            monkeypatch.setattr(ObjectStore, "read_version", read_version)
            storage.append_line(path, others.pop(0))
            monkeypatch.setattr(ObjectStore, "read_version", read_before_another_writes)
        return result

    monkeypatch.setattr(ObjectStore, "read_version", read_before_another_writes)
    storage.append_line(path, "last")
    assert storage.read_bytes(path) == b"first\nsecond\nlast\n"


def test_a_missing_file_is_named(folder: str) -> None:
    with pytest.raises(InputError, match=r"nothing\.txt: no such file"):
        storage.read_bytes(storage.join(folder, "nothing.txt"))


def test_bad_json_is_named(folder: str) -> None:
    path = storage.join(folder, "bad.json")
    storage.write_bytes(path, b"{")
    with pytest.raises(InputError, match=r"bad\.json: is not valid JSON"):
        storage.read_json(path)


def test_large_json_is_not_parsed(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since parsed values take a multiple of the bytes; the manifest of 100,000 shards is not too large."""
    assert 100_000 * 1_100 < files._MAX_JSON_BYTES <= 128 << 20
    path = storage.join(folder, "a.json")
    storage.write_bytes(path, b"[[],[]]")
    monkeypatch.setattr(files, "_MAX_JSON_BYTES", 7)
    assert storage.read_json(path) == [[], []]
    storage.write_bytes(path, b"[[], []]")
    with pytest.raises(InputError, match=r"a\.json: has more than 7 bytes, too many"):
        storage.read_json(path)


def test_an_unknown_protocol_is_named() -> None:
    """With the part of the URL that the user must have given, not the name of a file of ours."""
    with pytest.raises(
        StorageError, match=r"^nosuch://x: cannot access this storage .*; use a local path or another URL"
    ):
        storage.exists("nosuch://x/folder/_next/manifest.json")


def test_an_error_of_a_file_system_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match=r"^reference://x: cannot access this storage \(.*missing"):
        storage.exists("reference://x")


def test_an_error_of_a_remote_file_system_names_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise LookupError("no route to host")

    for method in ("exists", "isdir", "isfile"):
        monkeypatch.setattr(f"fsspec.implementations.memory.MemoryFileSystem.{method}", fail)
    for function in (storage.exists, storage.is_folder, storage.is_file):
        with pytest.raises(StorageError, match=r"^memory://x/y: cannot read: no route to host"):
            function("memory://x/y")


def test_colons_in_a_local_name_are_not_a_chain_of_urls(tmp_path: Path) -> None:
    for name in ("::x", "a::b", "data:,x"):
        storage.write_bytes(str(tmp_path / name), b"x")
        assert storage.read_bytes(str(tmp_path / name)) == b"x"
    assert storage.list_folder(str(tmp_path)) == ["::x", "a::b", "data:,x"]


def test_relative_paths_give_relative_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage.write_bytes("d/a.txt", b"x")
    assert storage.glob("d/*.txt") == ["d/a.txt"]
    assert storage.walk_files("d") == ["d/a.txt"]


def test_a_full_disk_is_named_with_the_remedy(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from pipelines import storage
        from pipelines.errors import StorageError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        try:
            storage.write_bytes(sys.argv[1], b"x" * 100_000)
        except StorageError as error:
            print(error)
    """
    path = tmp_path / "big.bin"
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{path}: cannot write: File too large" in printed
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_no_space_left_says_that_a_rerun_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left on device; free some space"):
        storage.write_bytes(str(tmp_path / "a"), b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_of_a_folder_is_refused(folder: str) -> None:
    with (
        folder_lock(folder),
        pytest.raises(LockedError, match=f"process {os.getpid()} on "),
        folder_lock(folder),
    ):
        pass
    with folder_lock(folder):
        pass


def _hold_lock(folder: str, ready: multiprocessing.synchronize.Event) -> None:  # type: ignore[name-defined]
    with folder_lock(folder):
        ready.set()
        signal.pause()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_lock, args=(str(tmp_path), ready))
    process.start()
    assert ready.wait(20)
    with pytest.raises(LockedError), folder_lock(str(tmp_path)):
        pass
    process.kill()
    process.join()
    with folder_lock(str(tmp_path)):
        pass


def test_the_fingerprint_of_a_large_file_sees_its_size_and_spread_windows(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    size = 65 << 20

    def fingerprint(change_at: int | None = None, size_bytes: int = size) -> str:
        with path.open("wb") as stream:
            stream.truncate(size_bytes)
            if change_at is not None:
                stream.seek(change_at)
                stream.write(b"x")
        return storage.content_fingerprint(str(path))

    plain = fingerprint()
    assert plain == fingerprint()
    assert plain != fingerprint(change_at=0)
    assert plain != fingerprint(change_at=size - 1)
    assert plain != fingerprint(size_bytes=size + 1)


def test_the_checksum_of_a_work_file_is_its_crc(tmp_path: Path) -> None:
    path = str(tmp_path / "work")
    with storage.atomic_write(path, durable=False) as stream:
        stream.write(b"12345")
        stream.write(b"6789")
    assert (stream.size_bytes, stream.checksum) == (9, "crc32:cbf43926")  # the check value of CRC-32
    assert storage.checksum_of(path, stream.checksum) == stream.checksum
    assert storage.checksum_of(path, "0" * 64) == storage.sha256_of(path)


def test_a_file_is_private_until_it_is_complete_and_then_as_other_programs_write_it(tmp_path: Path) -> None:
    with storage.atomic_write(str(tmp_path / "folder" / "file")) as stream:
        stream.write(b"x")
        [temporary] = (tmp_path / "folder").iterdir()
        assert temporary.stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").touch()
    assert (tmp_path / "folder" / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_prepared_link_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
    (tmp_path / "file.tmp-0000000000000000").symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError, match="file: cannot write: File exists"):
        storage.write_bytes(str(tmp_path / "file"), b"x")
    assert not (tmp_path / "victim").exists()


def test_the_temporary_folder_of_an_object_is_private_and_removed_with_it() -> None:
    owner = threading.Event()
    first, second = (Path(storage.temporary_folder_of(owner)) for _ in range(2))
    assert first != second
    assert first.stat().st_mode & 0o777 == 0o700
    del owner
    assert not first.exists()
    assert not second.exists()


def test_a_folder_for_temporary_files_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "none", tmp_path / "file"):
        monkeypatch.setenv("TMPDIR", str(folder))
        with pytest.raises(StorageError, match=rf"^TMPDIR={folder}: is not a folder that you can write to; create it"):
            storage.temporary_folder()
        with pytest.raises(StorageError, match=r"^TMPDIR="):
            storage.temporary_file(1)
        with pytest.raises(StorageError, match=r"^TMPDIR="):
            storage.temporary_folder_of(tmp_path)


def test_a_line_is_not_joined_with_one_that_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("first")
    storage.append_line(str(path), "second")
    storage.append_line(str(path), "third")
    assert path.read_text() == "first\nsecond\nthird\n"
