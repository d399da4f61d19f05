"""Which indexes fit together, and what an index is that is made of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from pipelines.algorithms.bloom.file_format import Header
from pipelines.core.errors import InputError, UsageError
from pipelines.core.ngram_filter import FilterFolder, open_filter_folder
from pipelines.core.run import TaskResult
from pipelines.stages.overlap_index.config import OverlapIndexConfig

# The fields of the header that must be equal, and how the options that make them are called.
_ALIKE = {
    "n": "--ngram",
    "normalisation": "--apostrophes, --letters and --lines, and with the same version of Python",
    "seed": "the same seed",
    "error_rate": "--error-rate",
    "blocks": "--items",
    "k": "--items",
}


@dataclasses.dataclass(frozen=True)
class Mergeable:
    """An index in our own format."""

    folder: FilterFolder
    header: Header


@dataclasses.dataclass(frozen=True)
class CheckTask:
    """An index whose bits are to be checked."""

    number: int
    folder: FilterFolder

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"index-{self.number:05d}"


def open_indexes(folders: Sequence[str]) -> list[Mergeable]:
    """Open indexes to be merged, in an order that does not hang on how they were named.

    Raises UsageError for fewer than two, and InputError, naming the difference, for two that do not fit together, and
    for documents that are in two of them.
    """
    if len(folders) < 2:
        raise UsageError(f"--merge {folders[0]} stands alone; name two indexes or more, each with --merge")
    opened = [_open(folder) for folder in folders]
    for other in opened[1:]:
        _require_alike(opened[0], other)
    _require_apart(opened)
    return sorted(opened, key=lambda each: each.header.corpus)


def merged_config(config: OverlapIndexConfig, header: Header) -> OverlapIndexConfig:
    """Return the options that the indexes were made with, so that the result says of itself what it is."""
    apostrophes, letters, lines = (header.normalisation[name] for name in ("apostrophes", "letters", "lines"))
    return dataclasses.replace(
        config,
        ngram=header.n,
        apostrophes=apostrophes,
        letters=letters,
        lines=lines,
        error_rate=header.error_rate,
        items=header.sketch_items,
    )


def merged_corpora(indexes: Sequence[Mergeable]) -> list[str]:
    """Return the fingerprints of all that was indexed."""
    return sorted(corpus for each in indexes for corpus in each.folder.corpora)


def merged_header(indexes: Sequence[Mergeable]) -> Header:
    """Return the header of the merged filter, before it is measured."""
    return dataclasses.replace(
        indexes[0].header,
        sketch_items=max(each.header.sketch_items for each in indexes),
        documents=sum(each.header.documents for each in indexes),
        corpus=hashlib.sha256("\n".join(merged_corpora(indexes)).encode()).hexdigest(),
    )


def check_index(task: CheckTask) -> TaskResult:
    """Count the documents of an index; raise DamagedShardError where its file is not what its manifest says."""
    task.folder.file.verify()
    return TaskResult(records_in=task.folder.documents, records_out=task.folder.documents)


def _open(path: str) -> Mergeable:
    folder = open_filter_folder(path)
    if folder.header is None:
        raise InputError(f"{path}: is a filter of pybloom-live, which cannot be merged; make it without --filter")
    return Mergeable(folder, folder.header)


def _require_alike(one: Mergeable, other: Mergeable) -> None:
    for field, way_out in _ALIKE.items():
        theirs, ours = getattr(other.header, field), getattr(one.header, field)
        if theirs != ours:
            raise InputError(
                f"{other.folder.path}: cannot be merged with {one.folder.path}: {field} is {_shown(theirs)} there and "
                f"{_shown(ours)} here; make both with the same {way_out.removeprefix('the same ')}"
            )


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in sorted(value.items()))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _require_apart(indexes: Sequence[Mergeable]) -> None:
    """Raise InputError where the same documents are in two indexes, and so would be counted twice."""
    held: dict[str, str] = {}
    for each in indexes:
        for corpus in each.folder.corpora:
            if corpus in held:
                raise InputError(
                    f"{each.folder.path}: holds the same documents as {held[corpus]} (fingerprint {corpus[:12]}); name "
                    "each index once"
                )
            held[corpus] = each.folder.path
