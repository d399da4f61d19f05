"""What a run shows to others: its progress while it runs, and at its end a line in the corpus's `runs.log`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from pipelines import storage
from pipelines.engine.machine import peak_bytes
from pipelines.engine.manifest import Identity, Manifest
from pipelines.errors import InputError, StorageError
from pipelines.format import mask_credentials
from pipelines.progress import Progress

# JSON lines; not `.jsonl`, since the files of a user, next to which it is, are read by their suffixes.
_RUNS = "runs.log"
# Hidden, as the lock: not a file of the result.
_PROGRESS = ".progress.json"
# Between two writes, each of which is a request in an object store.
_LOCAL_INTERVAL_S, _REMOTE_INTERVAL_S = 1.0, 30.0
_MAX_ERROR_CHARACTERS = 500


@dataclasses.dataclass(frozen=True)
class LiveProgress:
    """How far a running stage is: the units of its current piece of work, and the seconds since that began.

    `total` is None if it is not known.
    """

    label: str
    done: int
    total: int | None
    unit: str
    seconds: float

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at this rate; None if that is not known."""
        return (self.total - self.done) / self.rate if self.total and self.rate else None


class RecordedProgress(Progress):
    """A `Progress` that shows what another one shows, and writes it into the folder of the run.

    The file also says what the run is, so that the next run can record one that was killed. A failed write is noted
    once, and does not end the run.
    """

    def __init__(self, shown: Progress, folder: str, identity: Identity) -> None:
        # None while the run has not asked its executor, which may have to connect to a cluster.
        self.workers: int | None = None
        self._shown = shown
        self._folder = folder
        self._path = storage.join(folder, _PROGRESS)
        self._interval = _LOCAL_INTERVAL_S if storage.is_local(folder) else _REMOTE_INTERVAL_S
        self._run = {
            "stage": identity.stage,
            "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "command": [*map(mask_credentials, sys.argv)],
            "version": importlib.metadata.version("webtext-kit"),
            "config": identity.config,
            "inputs": identity.inputs,
        }
        self._run_started = time.monotonic()
        self._is_noted = False

    def start(self, label: str, total: int | None, unit: str) -> None:
        """See `Progress.start`."""
        self._shown.start(label, total, unit)
        self._current = LiveProgress(label, 0, total, unit, 0.0)
        self._started, self._paused_at = time.monotonic(), 0.0
        self._write()

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""
        self._shown.advance(units)
        if self._paused_at:
            self._started, self._paused_at = self._started + time.monotonic() - self._paused_at, 0.0
        self._current = dataclasses.replace(self._current, done=self._current.done + units)
        if time.monotonic() - self._written >= self._interval:
            self._write()

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        self._shown.note(message)

    def pause(self) -> None:
        """See `Progress.pause`."""
        self._shown.pause()
        self._paused_at = self._paused_at or time.monotonic()

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""
        self._shown.finish(complete)

    def begin(self) -> None:
        """Record a run of this folder that was killed, as its file shows; to be called under the lock of the folder."""
        if (killed := _read(self._path)) is not None:
            progress = LiveProgress(**killed["progress"])
            error = f"killed during {progress.label} ({progress.done:,} {progress.unit} done)"
            self._append({**killed["run"], "outcome": "killed", "error": error})

    def end(self, manifest: Manifest | None, error: str | None, *, is_whole: bool = False) -> None:
        """Record the end of the run; `manifest` is None if it failed. A whole run did all of the tasks itself."""
        line = self._run_so_far() | {
            "outcome": "done" if manifest else "failed",
            "error": error and mask_credentials(error)[:_MAX_ERROR_CHARACTERS],
        }
        if manifest:
            figures = ("records_in", "records_out", "dropped", "counts")
            line |= {name: getattr(manifest, name) for name in figures} | {"whole": is_whole}
        self._append(line)

    def remove(self) -> None:
        """Remove the file of the progress, at the end of the run."""
        with self._noted():
            storage.remove(self._path)

    def _write(self) -> None:
        self._written = time.monotonic()
        current = dataclasses.replace(self._current, seconds=round(self._written - self._started, 1))
        content = {"run": self._run_so_far(), "progress": dataclasses.asdict(current)}
        with self._noted(), storage.atomic_write(self._path, durable=False) as stream:
            stream.write(json.dumps(content, ensure_ascii=False).encode())

    def _run_so_far(self) -> dict[str, Any]:
        seconds = round(time.monotonic() - self._run_started, 1)
        peak = max(peak_bytes().values(), default=0)
        return self._run | {"workers": self.workers, "seconds": seconds, "peak_memory_bytes": peak}

    def _append(self, line: dict[str, Any]) -> None:
        """Append a line to `runs.log`, unless the folder is not named like its stage, and so is not in a corpus."""
        if storage.basename(self._folder) == line["stage"]:
            with self._noted():
                path = storage.join(storage.parent(self._folder), _RUNS)
                storage.append_line(path, json.dumps(line, ensure_ascii=False))

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if not self._is_noted:
                self._shown.note(f"cannot record the run ({error})")
            self._is_noted = True


def read_progress(folder: str) -> LiveProgress | None:
    """Return the progress of the run that writes a folder, None if there is none."""
    content = _read(storage.join(folder, _PROGRESS))
    return LiveProgress(**content["progress"]) if content else None


def read_runs(corpus: str) -> list[dict[str, Any]]:
    """Return the lines of the log of a corpus, oldest first; a line that is not JSON, as of a full disk, is skipped."""
    path = storage.join(corpus, _RUNS)
    runs = []
    for line in storage.read_bytes(path).splitlines() if storage.exists(path) else []:
        with contextlib.suppress(ValueError):
            runs.append(json.loads(line))
    return runs


def _read(path: str) -> dict[str, Any] | None:
    try:
        return storage.read_json(path) if storage.exists(path) else None
    except (InputError, StorageError):  # the run has ended meanwhile, or was killed while it wrote
        return None
