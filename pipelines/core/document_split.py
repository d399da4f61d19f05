"""Which documents a stage holds out or samples: by a hash of what they are, never by where they stand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import storage
from pipelines.core.document_filter import group_names
from pipelines.core.inputs import DocumentShard

_ALL = 2**64
_DIGEST_BYTES = hashlib.sha256().digest_size


def split_keys(batch: pa.RecordBatch, keys: list[str]) -> list[str]:
    """Return what decides where each document of a batch goes: near-duplicates of one cluster go together.

    That is its `cluster`, a column or a further field of JSONL; where it has none, its key of `document_keys`.
    """
    return [
        key if cluster is None else cluster for key, cluster in zip(keys, group_names(batch, "cluster"), strict=True)
    ]


def document_keys(batch: pa.RecordBatch, shard: DocumentShard) -> list[str]:
    """Return what names each document of a batch, wherever it stands.

    That is its id; where that was only made of the file and the row, its text. The batch is one that `read_documents`
    yields for the shard.
    """
    names = {storage.basename(file.path) for file in shard.files}
    keys: list[str] = batch.column("id").to_pylist()
    placed = [row for row, id in enumerate(keys) if id in names or (":" in id and _is_place(id, names))]
    if not placed:
        return keys
    # The texts of the others are left in their column: making strings of them would cost more than all else here.
    for row, text in zip(placed, batch.column("text").take(pa.array(placed, pa.int64())).to_pylist(), strict=True):
        keys[row] = text
    return keys


def hashed(key: str, purpose: str) -> int:
    """Return 64 bits that depend on a key and a purpose alone, so that one choice says nothing of another."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{key}".encode()).digest()[:8], "big")


def all_hashed(keys: Sequence[str], purpose: str) -> npt.NDArray[np.uint64]:
    """Return `hashed` of each key, shape (keys,)."""
    prefix, sha256 = f"{purpose}:".encode(), hashlib.sha256
    digests = b"".join([sha256(prefix + key.encode()).digest() for key in keys])
    return np.frombuffer(digests, ">u8")[:: _DIGEST_BYTES // 8].astype(np.uint64)


def all_held_out(keys: Sequence[str], share: float) -> npt.NDArray[np.bool_]:
    """Return `is_held_out` of each key, shape (keys,); `share` is below 1."""
    # Below a number is below the next integer; as a float the hash would lose its last bits.
    return all_hashed(keys, "held-out") < np.uint64(math.ceil(share * _ALL))


def is_held_out(key: str, share: float) -> bool:
    """Tell whether a document is held out: by its key alone, so for the same share on every machine and in any order.

    A larger share holds out all that a smaller one does.
    """
    return hashed(key, "held-out") < share * _ALL


def _is_place(id: str, names: set[str]) -> bool:
    name, _, row = id.rpartition(":")
    return name in names and row.isdecimal()
