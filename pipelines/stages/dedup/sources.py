"""What is deduplicated: the documents of the input, and those of earlier corpora, which are only compared with.

An earlier corpus is read from its documents, or from the signatures that `--write-signatures` wrote with them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.engine.stage import RunOptions
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.inputs import DocumentShard, InputFile
from pipelines.stages.dedup.config import DedupConfig

SIGNATURES = "signatures"
_SETTINGS = b"minhash"


@dataclasses.dataclass(frozen=True)
class SourceShard:
    """Documents that one task reads: from `documents`, their signatures from the file `signatures` if there is one.

    Without `documents`, the shingles of the documents are unknown.
    """

    index: int
    documents: DocumentShard | None
    signatures: InputFile | None = None
    is_earlier: bool = False

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"documents-{self.index:05d}"

    def require_documents(self) -> DocumentShard:
        """Return the documents of a shard that has them, as every one of the input does."""
        assert self.documents is not None
        return self.documents

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The files that the task reads."""
        return self.documents.files if self.documents else (self.signatures,) if self.signatures else ()


def open_earlier(
    folders: Sequence[str], config: DedupConfig, first: int, options: RunOptions
) -> tuple[list[SourceShard], list[str]]:
    """Return the shards of earlier corpora, numbered from `first`, and the fingerprint of each corpus."""
    earlier: list[SourceShard] = []
    fingerprints = []
    for folder in folders:
        if has_manifest(folder) and (files := _stage_files(folder, SIGNATURES)):
            fingerprints.append(read_manifest(folder).fingerprint())
            for signatures, texts in zip(files, _stage_files(folder, "documents"), strict=True):
                _check_settings(signatures, config)
                number = first + len(earlier)
                # Only the signatures may have been kept.
                documents = DocumentShard(number, (texts,)) if storage.exists(texts.path) else None
                earlier.append(SourceShard(number, documents, signatures, is_earlier=True))
            continue
        source = inputs.open_configured(folder, config, options)
        fingerprints.append(source.fingerprint)
        for shard in source.shards:
            earlier.append(SourceShard(first + len(earlier), shard, is_earlier=True))
    return earlier, fingerprints


def _stage_files(folder: str, noun: str) -> list[InputFile]:
    return inputs.StageFolder(folder, read_manifest(folder)).files(f"{noun}-", ".parquet")


def signature_schema(config: DedupConfig) -> pa.Schema:
    """Return the schema of `signatures-NNNNN.parquet`; its metadata tell how the values were computed."""
    settings = {"ngram": config.ngram, "num_perm": config.num_perm, "seed": config.seed, "scheme": "affine32"}
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("score", pa.float64()),
            pa.field("created_utc", pa.int64()),
            pa.field("text_hash", pa.binary(16), nullable=False),
            pa.field("has_words", pa.bool_(), nullable=False),
            pa.field("minhash", pa.list_(pa.uint32(), config.num_perm), nullable=False),
        ],
        {_SETTINGS: json.dumps(settings, sort_keys=True).encode()},
    )


def _check_settings(file: InputFile, config: DedupConfig) -> None:
    with shards.open_stream(file.path) as stream:
        metadata = shards.open_parquet(stream, file.path).schema_arrow.metadata or {}
    expected = (signature_schema(config).metadata or {})[_SETTINGS]
    if (settings := metadata.get(_SETTINGS)) != expected:
        raise InputError(
            f"{file.path}: has signatures of {(settings or b'unknown settings').decode()}, not of {expected.decode()}; "
            "use the same options, or name the documents instead of the folder"
        )


def signature_values(column: pa.FixedSizeListArray) -> npt.NDArray[np.uint32]:
    """Return the MinHash values of a batch of signatures, shape (documents, num_perm)."""
    return np.asarray(column.flatten().to_numpy()).reshape(len(column), column.type.list_size)
