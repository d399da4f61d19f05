"""What a stage is, how it is run, and what its tasks and the whole run report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.tasks import Executor, SerialExecutor
from pipelines.format import mask_credentials
from pipelines.progress import Progress, Silent

# In `Stage.grows`.
GROWS_BY_FILES = "*"


@dataclasses.dataclass(frozen=True)
class Stage:
    """The name and version of a stage; raise the version when equal inputs give other bytes.

    `writes` names the files and folders of the stage other than numbered shards (see `OutputFolder`). A result that
    `is_irreplaceable` may be impossible to build again: `--overwrite` alone does not delete it. One that
    `is_expensive` is not rebuilt by `webtext build` because its input changed. `grows` are the inputs that can be added
    to (`GROWS_BY_FILES`: further shard inputs), so that a run may use a finished result (see `stage_run`).
    """

    name: str
    version: int
    writes: tuple[str, ...] = ()
    is_irreplaceable: bool = False
    is_expensive: bool = False
    grows: tuple[str, ...] = ()


# Starting workers takes about a second, as long as the tasks for this many bytes of documents.
_TINY_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a stage is run; nothing here changes its result.

    `overwrite` replaces a different result, for an irreplaceable one together with `discard_pages`; also without it, a
    result is rebuilt whose `follow_inputs` have changed, and nothing else. With `serial_if_tiny`, small inputs are read
    without worker processes. A `dry_run` raises `DryRun` with what it would do.
    """

    executor: Executor = dataclasses.field(default_factory=SerialExecutor)
    overwrite: bool = False
    progress: Progress = dataclasses.field(default_factory=Silent)
    discard_pages: bool = False
    serial_if_tiny: bool = False
    follow_inputs: tuple[str, ...] = ()
    dry_run: bool = False

    def for_input(self, size_bytes: int) -> RunOptions:
        """Return the options for an input of this size."""
        is_tiny = self.serial_if_tiny and size_bytes < _TINY_BYTES
        return dataclasses.replace(self, executor=SerialExecutor()) if is_tiny else self


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """What a task reports: its counts, and the files that it wrote into the output folder."""

    records_in: int = 0
    records_out: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()

    def entry(self, phase: str, name: str, *, work: bool = False) -> ShardEntry:
        """Return the entry of the task."""
        return ShardEntry(phase, name, work=work, **{**vars(self), "dropped": dict(sorted(self.dropped.items()))})


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a command prints at its end: records in, out and dropped, and figures of the stage."""

    stage: str
    records_in: int
    records_out: int
    dropped: Mapping[str, int]
    seconds: float
    output: str
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        fields = {name: value for name, value in vars(self).items() if name != "extra"}
        return {**fields, "output": mask_credentials(self.output), **self.extra}
