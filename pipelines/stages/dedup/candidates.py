"""Second phase: equal texts, and the pairs that agree in a band.

Each task takes one band and those of its keys that fall to one part, so that its memory does not grow with the corpus.
Equal keys are brought together by sorting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import progress, shards, storage
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.signatures import Numbers, SignedShard, band_name, read_columns

# Documents that a task holds, at about a hundred bytes each.
DOCUMENTS_A_PART = 1 << 20
# In a bucket of more than one more than this, a document is paired with this many neighbours and the first one only.
NEIGHBOURS = 16

PAIR_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("left", "right")])

Hashes = npt.NDArray[np.uint64]


@dataclasses.dataclass(frozen=True)
class PartTask:
    """Find equal texts (`band` is None), or pairs of one band, among the keys that fall to one part of `parts`."""

    band: int | None
    bands: int
    part: int
    parts: int
    signed: tuple[SignedShard, ...]
    output: str
    work: str

    @property
    def name(self) -> str:
        """The band and the part."""
        return f"{'texts' if self.band is None else band_name(self.band)}-{self.part:05d}"


def parts_for(documents: int) -> int:
    """Return the number of parts into which the keys of so many documents are split."""
    return max(1, -(-documents // DOCUMENTS_A_PART))


def find_pairs(task: PartTask) -> TaskResult:
    """Write the pairs of documents with equal texts, or the candidate pairs of one band."""
    pairs = _equal_texts(task) if task.band is None else _band_pairs(task, task.band)
    with shards.write_shard(task.output, storage.join(task.work, f"pairs-{task.name}.parquet"), PAIR_SCHEMA) as written:
        for left, right in pairs:
            ordered = [pa.array(np.minimum(left, right)), pa.array(np.maximum(left, right))]
            written.writer.write_batch(pa.RecordBatch.from_arrays(ordered, schema=PAIR_SCHEMA))
    progress.advance()
    return TaskResult(files=(written.entry,))


def _equal_texts(task: PartTask) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield a pair of the first document with a text and another one with it, for each of the others."""
    numbers, (high, low) = _read_part(task, ["text_hash", "text_hash_2"])
    order = np.lexsort((numbers, low, high))
    numbers, high, low = numbers[order], high[order], low[order]
    is_first = _changes(high) | _changes(low)
    firsts = numbers[np.maximum.accumulate(np.where(is_first, np.arange(len(numbers)), 0))]
    yield firsts[~is_first], numbers[~is_first]


def _band_pairs(task: PartTask, band: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the candidate pairs of one band: documents with the same key, equal texts once."""
    names = [band_name(band), band_name((band + 1) % task.bands), "text_hash"]
    numbers, (keys, next_keys, texts) = _read_part(task, names)
    order = np.lexsort((numbers, texts, next_keys, keys))
    numbers, keys, texts = numbers[order], keys[order], texts[order]
    once = _changes(keys) | _changes(texts)
    yield from bucket_pairs(numbers[once], keys[once])


def bucket_pairs(numbers: Numbers, keys: Hashes) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs of documents that share a key, given both arrays in the order of the keys.

    A bucket of up to NEIGHBOURS + 1 documents gives all its pairs. In a larger one, each document is paired with its
    next NEIGHBOURS and with the first: within a bucket documents stand in the order of the next band's key, so that
    those that agree in two bands are neighbours, and the work grows with the size of the bucket, not with its square.
    """
    for distance in range(1, NEIGHBOURS + 1):
        same = keys[:-distance] == keys[distance:]
        if not same.any():
            return
        yield numbers[:-distance][same], numbers[distance:][same]
    positions = np.arange(len(keys))
    first = np.maximum.accumulate(np.where(_changes(keys), positions, 0))
    far = positions - first > NEIGHBOURS
    yield numbers[first[far]], numbers[far]


def _changes(values: Hashes) -> npt.NDArray[np.bool_]:
    """Return where a value differs from the one before it; the first always does."""
    return np.concatenate((np.ones(min(1, len(values)), dtype=bool), values[1:] != values[:-1]))


def _read_part(task: PartTask, names: list[str]) -> tuple[Numbers, list[Hashes]]:
    """Read the documents whose first key falls to the task's part."""
    numbers: list[Numbers] = [np.zeros(0, dtype=np.int64)]
    columns: list[list[Hashes]] = [[np.zeros(0, dtype=np.uint64)] for _ in names]
    for batch_numbers, batch_columns in read_columns(task.signed, names):
        ours = batch_columns[0] % np.uint64(task.parts) == task.part
        numbers.append(batch_numbers[ours])
        for column, values in zip(columns, batch_columns, strict=True):
            column.append(values[ours])
    return np.concatenate(numbers), [np.concatenate(column) for column in columns]


def read_pairs(paths: tuple[str, ...]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the pairs of files, batch by batch."""
    for path in paths:
        for batch in shards.read_batches(path):
            yield batch.column("left").to_numpy(), batch.column("right").to_numpy()


def count_pairs(paths: tuple[str, ...]) -> int:
    """Return the number of pairs in files."""
    total = 0
    for path in paths:
        with storage.open_read(path) as stream:
            total += shards.open_parquet(stream, path).metadata.num_rows
    return total
