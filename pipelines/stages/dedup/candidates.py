"""Phase 2: pairs of documents with equal texts, and candidate pairs that agree in a band.

Each task reads one band, and of its keys those of one part, so that memory does not grow with the corpus. Sorting
brings equal keys together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import progress, shards, storage
from pipelines.core.journal import WORK
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.signatures import Numbers, SignedShard, band_name, read_keys

# In a larger bucket, a document is paired with this many neighbors and with the first document only.
NEIGHBORS = 16

PAIR_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("left", "right")])

Hashes = npt.NDArray[np.uint64]


class KeyPart(NamedTuple):
    """The keys of one band, or the text hashes (`band` is None), that fall to one part."""

    band: int | None
    part: int

    @property
    def name(self) -> str:
        """The band and the part."""
        return f"{'texts' if self.band is None else band_name(self.band)}-{self.part:05d}"


@dataclasses.dataclass(frozen=True)
class KeySpace:
    """All keys of the signatures: `bands` columns, each split into `parts`."""

    signed: tuple[SignedShard, ...]
    bands: int
    parts: int
    output: str

    def key_parts(self) -> list[KeyPart]:
        """Return the parts of the text hashes, then those of each band."""
        return [KeyPart(band, part) for band in (None, *range(self.bands)) for part in range(self.parts)]


def find_pairs(key_part: KeyPart, keys: KeySpace) -> TaskResult:
    """Write the pairs of documents with equal texts, or the candidate pairs of a band."""
    pairs = _equal_texts(key_part, keys) if key_part.band is None else _band_pairs(key_part, key_part.band, keys)
    name = storage.join(WORK, f"pairs-{key_part.name}.parquet")
    with shards.write_shard(keys.output, name, PAIR_SCHEMA) as written:
        for left, right in pairs:
            columns = [pa.array(np.minimum(left, right)), pa.array(np.maximum(left, right))]
            written.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=PAIR_SCHEMA))
    progress.advance()
    return TaskResult(files=(written.entry,))


def _equal_texts(key_part: KeyPart, keys: KeySpace) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the first document with a text paired with each other document with the same text."""
    numbers, (high, low) = _read_part(key_part, keys, ["text_hash", "text_hash_2"])
    order = np.lexsort((numbers, low, high))
    numbers, high, low = numbers[order], high[order], low[order]
    is_first = _changes(high) | _changes(low)
    firsts = numbers[np.maximum.accumulate(np.where(is_first, np.arange(len(numbers)), 0))]
    yield firsts[~is_first], numbers[~is_first]


def _band_pairs(key_part: KeyPart, band: int, keys: KeySpace) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the candidate pairs of a band: documents with the same key, equal texts once."""
    names = [band_name(band), band_name((band + 1) % keys.bands), "text_hash"]
    numbers, (band_keys, next_keys, texts) = _read_part(key_part, keys, names)
    order = np.lexsort((numbers, texts, next_keys, band_keys))
    numbers, band_keys, texts = numbers[order], band_keys[order], texts[order]
    is_new = _changes(band_keys) | _changes(texts)
    yield from bucket_pairs(numbers[is_new], band_keys[is_new])


def bucket_pairs(numbers: Numbers, keys: Hashes) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs of documents that share a key, given both arrays in the order of the keys.

    A bucket of up to NEIGHBORS + 1 documents gives all its pairs. In a larger one, each document is paired with its
    next NEIGHBORS and with the first. Documents of a bucket are in the order of the next band's key, so documents that
    agree in two bands are neighbors, and the work grows with the size of the bucket, not with its square.
    """
    for distance in range(1, NEIGHBORS + 1):
        same = keys[:-distance] == keys[distance:]
        if not same.any():
            return
        yield numbers[:-distance][same], numbers[distance:][same]
    positions = np.arange(len(keys))
    first = np.maximum.accumulate(np.where(_changes(keys), positions, 0))
    distant = positions - first > NEIGHBORS
    yield numbers[first[distant]], numbers[distant]


def _changes(values: Hashes) -> npt.NDArray[np.bool_]:
    """Return where a value differs from the one before it; the first always does."""
    return np.concatenate((np.ones(min(1, len(values)), dtype=bool), values[1:] != values[:-1]))


def _read_part(key_part: KeyPart, keys: KeySpace, names: list[str]) -> tuple[Numbers, list[Hashes]]:
    """Read the documents whose key in the first column falls to the part."""
    numbers: list[Numbers] = [np.zeros(0, dtype=np.int64)]
    columns: list[list[Hashes]] = [[np.zeros(0, dtype=np.uint64)] for _ in names]
    for batch_numbers, batch_columns in read_keys(keys.signed, names):
        in_part = batch_columns[0] % np.uint64(keys.parts) == key_part.part
        numbers.append(batch_numbers[in_part])
        for column, values in zip(columns, batch_columns, strict=True):
            column.append(values[in_part])
    return np.concatenate(numbers), [np.concatenate(column) for column in columns]


def read_pairs(paths: tuple[str, ...]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the pairs of files, batch by batch."""
    for path in paths:
        for batch in shards.read_batches(path):
            yield batch.column("left").to_numpy(), batch.column("right").to_numpy()
