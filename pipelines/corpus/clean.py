"""What a corpus no longer needs: what killed runs left, and documents that later stages have read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from pipelines.core import storage
from pipelines.core.folder_lock import folder_lock, writer_of
from pipelines.core.journal import is_unfinished
from pipelines.core.manifest import NEXT, has_manifest
from pipelines.pipeline import DOCUMENT_STAGES, PIPELINE

# A page may be gone from the web, and a training may have taken weeks.
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
    """Return what can be removed of a corpus; with `stages`, also documents of which a later stage wrote the rest.

    A stage that another process writes is left alone, as are fetched pages and trained models.
    """
    removable: list[Removable] = []
    finished = [name for name in DOCUMENT_STAGES if has_manifest(storage.join(corpus, name))]
    for spec in PIPELINE:
        folder = storage.join(corpus, spec.name)
        if not storage.is_folder(folder) or writer_of(folder):
            continue
        removable += _leftovers(spec.name, folder)
        if stages and spec.name in finished[:-1]:
            what = f"documents before {finished[finished.index(spec.name) + 1]}"
            loss = f"what explain, show and sql read of it; `webtext {spec.name}` rebuilds it"
            removable.append(Removable(spec.name, folder, storage.folder_bytes(folder), what, loss))
    return removable


def remove(removable: Sequence[Removable]) -> int:
    """Remove files and folders under the locks of their stages; return how many bytes they had."""
    for item in removable:
        folder = item.path if storage.basename(item.path) == item.stage else storage.parent(item.path)
        with folder_lock(folder):
            storage.remove(item.path)
    return sum(item.size_bytes for item in removable)


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
        if ".tmp-" in name:
            path = storage.join(folder, name)
            yield Removable(stage, path, storage.size_bytes(path), "temporary file of a killed run", "nothing")
