"""The documents of a task's files, or a sample of those that `tokenize` trained on or held out. Paper, figure 4."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.engine.config import option
from pipelines.engine.manifest import Identity, has_manifest, read_manifest
from pipelines.errors import InputError
from pipelines.evaluation.records import Record, read_records
from pipelines.records import inputs
from pipelines.records.document_filter import with_text
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.tally import LowestHashes
from pipelines.stages.tokenize.config import TokenizeConfig

FILE = "file"
_TRAIN, _HELD_OUT = "train", "held-out"
_PARTS = f"part=all|{_TRAIN}|{_HELD_OUT}"
_SAMPLE = 1000


@dataclasses.dataclass(frozen=True)
class DocumentOptions:
    """Which documents are read."""

    text_field: str = option("text", "Field of records that has the text; a template with {field} is possible.")
    part: str = option(
        FILE,
        "Documents that are read: all of the files in order (file), or of the documents of `tokenize` a sample of both "
        "splits (all) or of one.",
        choices=(FILE, "all", _TRAIN, _HELD_OUT),
    )
    sample: int = option(
        0,
        "Documents of a split at most, chosen by a hash; of all, as many of both. 0: 1,000. Their texts are in memory.",
        minimum=0,
        only_with=_PARTS,
    )
    held_out: float = option(
        0.0,
        "Fraction of documents that is held out; 0: what `tokenize` recorded in a folder next to the documents.",
        minimum=0.0,
        maximum=0.5,
        only_with=_PARTS,
    )


class Document(NamedTuple):
    """A text, and its file and line, or its split and id."""

    text: str
    place: str


class Documents:
    """The documents of files; `counts` describes a sample, once it was read."""

    def __init__(self, options: DocumentOptions, files: Sequence[str]) -> None:
        self._options = options
        self._files = files
        self.counts: defaultdict[str, float] = defaultdict(float)

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents; those of a sample in the order of their hashes, the splits by turns."""
        if self._options.part == FILE:
            field = self._options.text_field
            return (Document(record_text(record, field), record.place) for record in read_records(self._files))
        return iter(self._sample)

    @functools.cached_property
    def _sample(self) -> list[Document]:
        """The documents of the splits with the lowest hashes, as many of each split."""
        size = self._options.sample or _SAMPLE
        source, share = self._open()
        lowest = {split: LowestHashes(size) for split in (_HELD_OUT, _TRAIN) if self._options.part in ("all", split)}
        drops = Drops()
        for shard in source.shards:
            for records in inputs.read_documents(shard, drops):
                batch = with_text(records, drops)
                # By the hash of the document, since near-duplicates of a cluster share the hash of the cluster.
                keys = document_keys(batch, shard)
                hashes, is_held_out = hash_keys(keys, "evaluate"), held_out_mask(split_keys(batch, keys), share)
                for split, sample in lowest.items():
                    rows = np.flatnonzero(is_held_out == (split == _HELD_OUT))
                    self.counts[f"{split}_documents"] += len(rows)
                    rows = rows[np.argsort(hashes[rows], kind="stable")[:size]]
                    columns = (batch.column(name).take(pa.array(rows)).to_pylist() for name in ("id", "text"))
                    for hash, id, text in zip(hashes[rows].tolist(), *columns, strict=True):
                        sample.add((hash, id), Document(text, f"{split}:{id}"))
        self.counts["fraction_held_out"] = share
        self.counts["documents_not_read"] = drops.counts.total()
        if missing := [split for split, sample in lowest.items() if not len(sample)]:
            raise InputError(
                f"{storage.parent(self._files[0])}: no document is in the split {missing[0]} "
                f"(fraction held out: {share:g})"
            )
        # By turns, so that the first ones are of both splits, too.
        return [document for turn in zip(*lowest.values(), strict=False) for document in turn]

    def _open(self) -> tuple[inputs.DocumentInput, float]:
        """Return the documents as `tokenize` read them, and the fraction that it held out."""
        folder = storage.parent(storage.absolute_path(self._files[0]))
        paths = list(map(storage.absolute_path, self._files))
        with contextlib.suppress(InputError):  # a folder with a manifest, but without documents
            if has_manifest(folder) and [file.path for file in inputs.open_documents(folder).files] == paths:
                paths = [folder]
        if self._options.held_out:
            return inputs.open_documents(paths, self._options.text_field), self._options.held_out
        for identity in _tokenized_near(folder):
            config = identity.config
            source = inputs.open_documents(
                paths,
                config["text_field"],
                config["max_document_mb"],
                id_field=config["id_field"],
                one_per_line=config["document"] == "line",
            )
            if source.fingerprint == identity.inputs.get("documents"):
                return source, float(config["held_out"])
        raise InputError(
            f"{folder}: no folder next to it has these documents as tokens, so what was held out is not known; "
            "run `webtext tokenize`, or set held_out in a task file of your own"
        )


def record_text(record: Record, template: str) -> str:
    """Return the text of a record: a field, or a template with {field}."""
    return record.text(template if "{" in template else f"{{{template}}}")


def _tokenized_near(folder: str) -> Iterator[Identity]:
    """Yield the results of `tokenize` in a folder and next to it."""
    for near in (folder, storage.parent(folder)):
        for name in storage.list_folder(near):
            path = storage.join(near, name)
            with contextlib.suppress(InputError):  # a manifest of another program
                if has_manifest(path) and (identity := read_manifest(path).identity).stage == "tokenize":
                    yield identity.with_current_options(TokenizeConfig)  # also of an earlier version
