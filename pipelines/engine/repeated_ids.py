"""Ids that several documents of an input share: what is looked up by id would be ambiguous.

The tasks that read the input return 64-bit hashes of the ids, which stay in the work folder until the run finishes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pipelines import storage

_FOLDER = "ids"
_HASHES_IN_MEMORY = 1 << 26


def hash_ids(ids: Iterable[str]) -> bytes:
    """Return 8 bytes per id."""
    return b"".join([hashlib.blake2b(id.encode(), digest_size=8).digest() for id in ids])


def write_id_hashes(work: str, task: str, hashes: bytes) -> None:
    """Write the hashes of a task into the work folder."""
    storage.write_bytes(storage.join(work, _FOLDER, task), hashes)


def count_repeated_ids(work: str) -> int:
    """Return how many documents have the id of another one, without one document of each id.

    The files are read once for each `_HASHES_IN_MEMORY`: at 16 bytes each, at most 1 GB is in memory.
    """
    folder = storage.join(work, _FOLDER)
    storage.remove_temporaries(folder)  # of a killed run; the ids of its task would count twice
    paths = [storage.join(folder, task) for task in storage.list_folder(folder)]
    passes = -(-sum(storage.map_files(storage.size_bytes, paths)) // (8 * _HASHES_IN_MEMORY))
    repeated = 0

    def read(number: int, path: str) -> npt.NDArray[np.uint64]:
        part = np.frombuffer(storage.read_bytes(path), np.uint64)
        return np.asarray(part[part % passes == number])

    for number in range(passes):
        hashes = np.concatenate(storage.map_files(functools.partial(read, number), paths))
        hashes.sort()
        repeated += int(np.count_nonzero(hashes[1:] == hashes[:-1]))
        del hashes  # otherwise in memory together with those of the next pass
    return repeated
