"""Held-out splits and samples: chosen by a hash of the document, never by its position."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.records.document_filter import group_names
from pipelines.records.inputs import DocumentShard

Key = str | bytes
_HASH_RANGE = 2**64


def split_keys(batch: pa.RecordBatch, keys: list[Key]) -> list[Key]:
    """Return the key by which each document of a batch is split, so that near-duplicates of a cluster stay together.

    That is its `cluster`, a column or a further field of JSONL; without one, its key of `document_keys`.
    """
    return [
        key if cluster is None else cluster for key, cluster in zip(keys, group_names(batch, "cluster"), strict=True)
    ]


def document_keys(batch: pa.RecordBatch, shard: DocumentShard) -> list[Key]:
    """Return a key for each document of a batch that does not depend on its position.

    That is its id, or its text, in UTF-8, where the id was generated from file and row. The batch is one that
    `read_documents` yields for the shard.
    """
    names = shard.file_names
    ids: list[str] = batch.column("id").to_pylist()
    positional = [row for row, id in enumerate(ids) if id in names or (":" in id and _is_position(id, names))]
    keys: list[Key] = [*ids]
    if positional:  # only these texts become objects: converting the whole column would cost more than the rest
        texts = batch.column("text").take(pa.array(positional, pa.int64())).cast(pa.binary()).to_pylist()
        for row, text in zip(positional, texts, strict=True):
            keys[row] = text
    return keys


def hash_key(key: str, purpose: str) -> int:
    """Return a 64-bit hash of a key and a purpose, so that choices for different purposes are independent."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{key}".encode()).digest()[:8], "big")


def hash_keys(keys: Sequence[Key], purpose: str) -> npt.NDArray[np.uint64]:
    """Return `hash_key` of each key, shape (keys,)."""
    prefix, sha256 = f"{purpose}:".encode(), hashlib.sha256
    digests = b"".join([sha256(prefix + (key if isinstance(key, bytes) else key.encode())).digest() for key in keys])
    return np.frombuffer(digests, ">u8")[::4].astype(np.uint64)  # of each, 8 of 32 bytes


def held_out_mask(keys: Sequence[Key], share: float) -> npt.NDArray[np.bool_]:
    """Return whether each document is held out, shape (keys,); `share` is below 1.

    This depends only on its key, so it is the same on every machine. A larger share holds out everything that a smaller
    one does.
    """
    # Below a number means below the next integer; as a float the hash would lose its last bits.
    return hash_keys(keys, "held-out") < np.uint64(math.ceil(share * _HASH_RANGE))


def _is_position(id: str, names: frozenset[str]) -> bool:
    name, _, row = id.rpartition(":")
    return name in names and row.isdecimal()
