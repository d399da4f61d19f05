"""Ids that several documents of an input share: what is looked up by id would be ambiguous.

The tasks that read the input return 64-bit hashes of the ids, which stay in the work folder until the run finishes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from pipelines.core import storage

_FOLDER = "ids"


def hash_ids(ids: Iterable[str]) -> bytes:
    """Return 8 bytes per id."""
    return b"".join(hashlib.blake2b(id.encode(), digest_size=8).digest() for id in ids)


def write_id_hashes(work: str, task: str, hashes: bytes) -> None:
    """Write the hashes of a task into the work folder."""
    storage.write_bytes(storage.join(work, _FOLDER, task), hashes)


def count_repeated_ids(work: str) -> int:
    """Return how many documents have the id of another one, without one document of each id; 8 bytes per document."""
    folder = storage.join(work, _FOLDER)
    storage.remove_temporaries(folder)  # of a killed run; the ids of its task would count twice
    parts = [storage.read_bytes(storage.join(folder, task)) for task in storage.list_folder(folder)]
    hashes = np.frombuffer(bytearray().join(parts), np.uint64)
    hashes.sort()
    return int(np.count_nonzero(hashes[1:] == hashes[:-1]))
