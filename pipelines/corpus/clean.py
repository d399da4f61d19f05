"""Removes what a corpus no longer needs: leftovers of killed runs, and documents that later stages have read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from pipelines import storage
from pipelines.build import finished_stages
from pipelines.engine.folder_lock import folder_lock, writer_of
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import NEXT, complete_replacement, has_manifest
from pipelines.errors import LockedError
from pipelines.pipeline import DOCUMENT_STAGES, PIPELINE

# Pages may be gone from the web, and training may have taken weeks.
_IRREPLACEABLE = ("fetch", "pretrain")


@dataclasses.dataclass(frozen=True)
class Removable:
    """A folder or file of a stage that can be removed: its size, what it is, and what is lost with it."""

    stage: str
    path: str
    size_bytes: int
    what: str
    loss: str


def find_removable(corpus: str, stages: bool) -> list[Removable]:
    """Return what can be removed of a corpus; with `stages`, also documents that a later stage has read and written.

    Stages that another process writes, fetched pages and trained models are kept.
    """
    removable: list[Removable] = []
    for spec in PIPELINE:
        folder = storage.join(corpus, spec.name)
        if storage.is_folder(folder) and not writer_of(folder):
            has_manifest(folder)  # completes a replacement that was killed while it moved its files
            removable += _removable(corpus, spec.name, stages)
    return removable


def remove(corpus: str, removable: Sequence[Removable]) -> list[Removable]:
    """Remove files and folders under the locks of their stages, unless they have changed; return the removed ones."""
    removed = []
    for item in removable:
        folder = storage.join(corpus, item.stage)
        with contextlib.suppress(LockedError), folder_lock(folder):
            complete_replacement(folder)
            if (item.path, item.what) in {(now.path, now.what) for now in _removable(corpus, item.stage, stages=True)}:
                storage.remove(item.path)
                removed.append(item)
    return removed


def _removable(corpus: str, stage: str, stages: bool) -> Iterator[Removable]:
    folder = storage.join(corpus, stage)
    yield from _leftovers(stage, folder)
    finished = [name for name in finished_stages(corpus) if name in DOCUMENT_STAGES]
    if stages and stage in finished[:-1]:
        what = f"documents before {finished[finished.index(stage) + 1]}"
        loss = f"what explain, show and sql read of it; `webtext {stage}` rebuilds it"
        yield Removable(stage, folder, storage.folder_bytes(folder), what, loss)


def _leftovers(stage: str, folder: str) -> Iterator[Removable]:
    replacement = storage.join(folder, NEXT)
    if storage.is_folder(replacement) and stage not in _IRREPLACEABLE:
        size = storage.folder_bytes(replacement)
        yield Removable(stage, replacement, size, "unfinished replacement of the result", "its finished tasks")
    if is_unfinished(folder) and not has_manifest(folder) and stage not in _IRREPLACEABLE:
        loss = "its finished tasks: the stage starts from the beginning"
        yield Removable(stage, folder, storage.folder_bytes(folder), "unfinished run", loss)
        return
    for name in storage.list_folder(folder):
        if storage.is_temporary(name):
            path = storage.join(folder, name)
            yield Removable(stage, path, storage.size_bytes(path), "temporary file of a killed run", "nothing")
