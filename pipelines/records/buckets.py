"""Work files with many buckets: compressed frames, each with rows of one bucket, followed by an index of the frames.

One file per task, instead of one per task and bucket, keeps 250 months in 64 buckets at 250 files. Pending rows are
bounded in bytes, whatever the number of buckets. A frame is an Arrow record batch compressed by LZ4: reading one bucket
costs its frames and a short index, while a Parquet reader would first parse the footer of all buckets.

    frames, index (int64: the fields of `_Frame` per frame), length of the index (8 bytes)
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.errors import InputError

_FLUSH_BYTES = 48 << 20
_LENGTH_BYTES = 8
_INDEX_TYPE = np.dtype("<i8")
# On such rows LZ4 compresses nearly twice and decompresses three times as fast as zstd at its first level, for 50% more
# disk (benchmarks/links.md).
_CODEC = pa.Codec("lz4")


class _Frame(NamedTuple):
    """The position and size of some rows; `checksum` is the CRC-32 of the compressed bytes."""

    bucket: int
    offset: int
    compressed_bytes: int
    checksum: int
    rows: int
    size_bytes: int


@contextlib.contextmanager
def write_buckets(path: str, schema: pa.Schema, flush_bytes: int = _FLUSH_BYTES) -> Iterator[BucketWriter]:
    """Yield a writer; the file appears if the block ends without an error, then `entry` describes it."""
    with storage.atomic_write(path, durable=False) as stream:
        writer = BucketWriter(stream, schema, flush_bytes)
        yield writer
        writer.close()


class BucketWriter:
    """Collects rows and writes them as frames by bucket, about `flush_bytes` at a time."""

    def __init__(self, stream: storage.HashingWriter, schema: pa.Schema, flush_bytes: int) -> None:
        self._stream = stream
        self._schema = schema
        self._flush_bytes = flush_bytes
        self._batches: list[pa.RecordBatch] = []
        self._buckets: list[npt.NDArray[np.int32]] = []
        self._pending_bytes = 0
        self._frames: list[_Frame] = []

    def write(self, batch: pa.RecordBatch, buckets: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Add a batch and the bucket of each of its rows."""
        if batch.num_rows == 0:
            return
        self._batches.append(batch)
        self._buckets.append(np.asarray(buckets, dtype=np.int32))
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= self._flush_bytes:
            self._flush()

    def entry(self, name: str) -> FileEntry:
        """Return the finished file, by its name in the folder of the stage, for the manifest."""
        return FileEntry(name, self._stream.size_bytes, self._stream.checksum)

    def close(self) -> None:
        """Write the pending rows and the index."""
        self._flush()
        index = np.array(self._frames, _INDEX_TYPE).tobytes()
        self._stream.write(index)
        self._stream.write(len(index).to_bytes(_LENGTH_BYTES, "little"))

    def _flush(self) -> None:
        if not self._batches:
            return
        buckets = np.concatenate(self._buckets)
        # numpy sorts numbers of 16 bits by radix, in a seventh of the time.
        order = np.argsort(buckets.astype(np.uint16) if buckets.max() < 1 << 16 else buckets, kind="stable")
        rows = pa.Table.from_batches(self._batches, schema=self._schema).combine_chunks()
        self._batches, self._buckets, self._pending_bytes = [], [], 0
        counts = np.bincount(buckets)
        ends = np.cumsum(counts)
        for bucket in np.flatnonzero(counts).tolist():
            members = rows.take(order[ends[bucket] - counts[bucket] : ends[bucket]])
            for batch in members.combine_chunks().to_batches():
                serialized = batch.serialize()
                compressed = _CODEC.compress(serialized)
                place = (bucket, self._stream.tell(), compressed.size, zlib.crc32(compressed))
                self._frames.append(_Frame(*place, batch.num_rows, serialized.size))
                self._stream.write(compressed)


@dataclasses.dataclass(frozen=True)
class BucketPart:
    """The rows of one bucket in one work file."""

    path: str
    schema: pa.Schema
    frames: tuple[_Frame, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(frame.rows for frame in self.frames)

    @property
    def size_bytes(self) -> int:
        """The size of all rows in memory."""
        return sum(frame.size_bytes for frame in self.frames)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the batches in which they were written; raise InputError if the file was changed."""
        if not self.frames:
            return
        start = end = self.frames[0].offset
        for frame in self.frames:
            if frame.offset == end:  # the frames of a range of buckets follow each other
                end += frame.compressed_bytes
        with storage.open_read(self.path, start=start, size=end - start) as stream:
            for frame in self.frames:
                stream.seek(frame.offset)
                compressed = stream.read(frame.compressed_bytes)
                if zlib.crc32(compressed) != frame.checksum:
                    raise InputError(
                        f"{self.path}: was changed after it was written; re-run the same command to rebuild it"
                    )
                yield pa.ipc.read_record_batch(_CODEC.decompress(compressed, frame.size_bytes), self.schema)


def read_bucket(paths: Sequence[str], schema: pa.Schema, bucket: int | range | None) -> list[pa.RecordBatch]:
    """Return the rows of a bucket in all work files, in the batches in which they were written; see `bucket_part`."""
    by_file = storage.map_files(lambda path: list(bucket_part(path, schema, bucket).batches()), paths)
    return list(itertools.chain.from_iterable(by_file))


def bucket_part(path: str, schema: pa.Schema, bucket: int | range | None = None) -> BucketPart:
    """Return the rows of a bucket in a work file, of a range of buckets (in the order of the file), or of all."""
    with storage.open_read(path, start=-_LENGTH_BYTES) as stream:
        end = stream.tell()
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        stream.seek(end - length)
        index = np.frombuffer(stream.read(length), _INDEX_TYPE).reshape(-1, len(_Frame._fields))
    # Not as JSON: each of thousands of tasks reads the index of every file.
    if bucket is not None:
        first, end = (bucket, bucket + 1) if isinstance(bucket, int) else (bucket.start, bucket.stop)
        index = index[(index[:, 0] >= first) & (index[:, 0] < end)]
    return BucketPart(path, schema, tuple(_Frame(*frame) for frame in index.tolist()))
