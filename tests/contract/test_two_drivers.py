"""Two commands write the same folder of an object store: one is killed or paused, and the result is never mixed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import storage
from pipelines.engine import lease
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.manifest import check_entries, read_manifest
from pipelines.engine.run import RunOptions
from pipelines.progress import Silent
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup

# Slow enough to be interrupted: every task waits.
_DRIVER = """
    import sys, time
    from pipelines.engine import lease, run
    from pipelines.engine.executor import LocalExecutor
    from pipelines.engine.run import RunOptions
    from pipelines.stages.dedup.config import DedupConfig
    from pipelines.stages.dedup.stage import dedup

    class Slow(LocalExecutor):
        def map(self, *arguments, **options):
            for pair in super().map(*arguments, **options):
                time.sleep(0.3)
                yield pair

    if __name__ == "__main__":
        lease.SECONDS = 1.0
        try:
            dedup(DedupConfig(), documents=sys.argv[1], output=sys.argv[2], options=RunOptions(executor=Slow(1)))
        except run.StorageError as error:
            sys.exit(str(error))
"""


@pytest.fixture
def documents(tmp_path: Path) -> str:
    words = random.Random(1)
    for number in range(6):
        texts = (" ".join(words.choices(["one", "two", "three", "four", "five"], k=80)) for _ in range(20))
        rows = [{"id": f"{number}-{index}", "text": text} for index, text in enumerate(texts)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"part-{number}.parquet")
    return f"{tmp_path}/part-*.parquet"


def _outcome(folder: str) -> dict[str, str]:
    return {path.removeprefix(folder): storage.sha256_of(path) for path in storage.walk_files(folder)}


class _Notes(Silent):
    """Collects the notes that a user would see."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@contextlib.contextmanager
def _interrupted_driver(documents: str, folder: str, with_signal: signal.Signals) -> Iterator[subprocess.Popen[str]]:
    """Run dedup in a process, and send it a signal after its first tasks."""
    command = [sys.executable, "-c", textwrap.dedent(_DRIVER), documents, folder]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
        deadline = time.monotonic() + 60
        while len(storage.list_folder(f"{folder}/_journal")) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        driver.send_signal(with_signal)
        yield driver


def test_a_run_whose_driver_was_killed_resumes_after_its_lease(
    bucket: str, documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 2.0)
    folder, alone = f"{bucket}/dedup", str(tmp_path / "dedup")
    dedup(DedupConfig(), documents=documents, output=alone, options=RunOptions())
    with _interrupted_driver(documents, folder, signal.SIGKILL):
        started = time.monotonic()
        with folder_lock(folder):
            assert time.monotonic() - started < 2 * lease.SECONDS
    progress = _Notes()
    dedup(DedupConfig(), documents=documents, output=folder, options=RunOptions(progress=progress))
    assert any("resuming; " in note for note in progress.notes), progress.notes
    assert _all_files(folder) == _all_files(alone) - {".lock"}
    assert _outcome(folder) == _outcome(alone)


def _all_files(folder: str) -> set[str]:
    """Return the names of the files below a folder, also of hidden ones."""
    plain = folder.removeprefix("s3://")
    return {str(path).removeprefix(f"{plain}/") for path in storage.file_system(folder).find(plain)}


@pytest.mark.parametrize(
    ("with_signal", "threshold"),
    [
        pytest.param(signal.SIGSTOP, 0.5, id="paused, and the other has other options", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 0.5, id="killed, and the other has other options", marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, 0.8, id="paused", marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_lost_its_lease_changes_nothing(
    bucket: str,
    documents: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_signal: signal.Signals,
    threshold: float,
) -> None:
    monkeypatch.setattr(lease, "SECONDS", 1.0)
    config, folder = DedupConfig(threshold=threshold), f"{bucket}/dedup"
    dedup(config, documents=documents, output=str(tmp_path / "alone"), options=RunOptions())
    with _interrupted_driver(documents, folder, with_signal) as first:
        dedup(config, documents=documents, output=folder, options=RunOptions(overwrite=True))
        before = _outcome(folder)
        if with_signal == signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)
            _, errors = first.communicate(timeout=60)
            assert first.returncode == 1
            assert "took over the lock" in errors or "is being written by" in errors
    assert _outcome(folder) == before
    manifest = read_manifest(folder)
    assert manifest == read_manifest(str(tmp_path / "alone"))
    assert set(check_entries(folder, manifest.final_shards)) == {None}
    # Progress that was being written when the driver was paused may stay, a hidden file.
    names, alone = storage.list_folder(folder), os.listdir(tmp_path / "alone")
    assert {name for name in names if name[0] != "."} == {name for name in alone if name[0] != "."}
