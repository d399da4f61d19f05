"""Work files that hold many buckets: compressed frames, each of rows of one bucket, and at the end where they are.

One file a task, instead of one a task and bucket, keeps 250 months in 64 buckets at 250 files; what waits in memory is
bounded in bytes, whatever the number of buckets. A frame is an Arrow record batch under LZ4: to read one bucket costs
its frames and a short index, while in a Parquet file every reader would first parse a footer of all buckets.

    frames, index (JSON: of each frame what `_Frame` names), length of the index (8 bytes)
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import storage
from pipelines.core.errors import InputError

_FLUSH_BYTES = 48 << 20
_LENGTH_BYTES = 8
# On such rows LZ4 packs nearly twice and unpacks three times as fast as zstd at its first level, for half as much disk
# again (benchmarks/links.md).
_CODEC = pa.Codec("lz4")


class _Frame(NamedTuple):
    """Where the rows are; `checksum` is the CRC-32 of the bytes in the file."""

    bucket: int
    offset: int
    packed_bytes: int
    checksum: int
    rows: int
    size_bytes: int


@dataclasses.dataclass
class WrittenBuckets:
    """A work file being written: `writer` inside the block, the other two after it."""

    writer: BucketWriter
    size_bytes: int = 0
    sha256: str = ""


@contextlib.contextmanager
def write_buckets(path: str, schema: pa.Schema) -> Iterator[WrittenBuckets]:
    """Yield a `WrittenBuckets`; the file appears when the block ends without an error."""
    with storage.atomic_write(path) as stream:
        written = WrittenBuckets(BucketWriter(stream, schema))
        yield written
        written.writer.close()
    written.size_bytes, written.sha256 = stream.size_bytes, stream.sha256


class BucketWriter:
    """Collects batches of rows and writes them as frames by bucket, about 48 MiB at a time."""

    def __init__(self, stream: storage.HashingWriter, schema: pa.Schema) -> None:
        self._stream = stream
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._buckets: list[npt.NDArray[np.int32]] = []
        self._pending_bytes = 0
        self._frames: list[_Frame] = []

    def write(self, batch: pa.RecordBatch, buckets: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Add a batch, and for each of its rows the bucket, as a sequence or an array of whole numbers."""
        if batch.num_rows == 0:
            return
        self._batches.append(batch)
        self._buckets.append(np.asarray(buckets, dtype=np.int32))
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is pending, and the index."""
        self._flush()
        index = json.dumps(self._frames).encode()
        self._stream.write(index)
        self._stream.write(len(index).to_bytes(_LENGTH_BYTES, "little"))

    def _flush(self) -> None:
        if not self._batches:
            return
        buckets = np.concatenate(self._buckets)
        order = np.argsort(buckets, kind="stable")
        rows = pa.Table.from_batches(self._batches, schema=self._schema).combine_chunks()
        self._batches, self._buckets, self._pending_bytes = [], [], 0
        found, starts = np.unique(buckets[order], return_index=True)
        for bucket, start, end in zip(found, starts, [*starts[1:], len(order)], strict=True):
            self._write_frame(int(bucket), rows.take(order[start:end]))

    def _write_frame(self, bucket: int, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            plain = batch.serialize()
            packed = _CODEC.compress(plain)
            offset, checksum = self._stream.tell(), zlib.crc32(packed)
            self._frames.append(_Frame(bucket, offset, packed.size, checksum, batch.num_rows, plain.size))
            self._stream.write(packed)


@dataclasses.dataclass(frozen=True)
class BucketPart:
    """The rows of one bucket in one work file; `size_bytes` in memory."""

    path: str
    schema: pa.Schema
    frames: tuple[_Frame, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(frame.rows for frame in self.frames)

    @property
    def size_bytes(self) -> int:
        """The bytes that all rows take in memory."""
        return sum(frame.size_bytes for frame in self.frames)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the batches in which they were written; raise InputError where the file was changed."""
        if not self.frames:
            return
        with storage.open_read(self.path) as stream:
            for frame in self.frames:
                stream.seek(frame.offset)
                packed = stream.read(frame.packed_bytes)
                if zlib.crc32(packed) != frame.checksum:
                    raise InputError(
                        f"{self.path}: was changed after it was written; run again, so that it is made anew"
                    )
                yield pa.ipc.read_record_batch(_CODEC.decompress(packed, frame.size_bytes), self.schema)


def bucket_part(path: str, schema: pa.Schema, bucket: int) -> BucketPart:
    """Find the rows of a bucket in a work file."""
    end = storage.size_bytes(path) - _LENGTH_BYTES
    with storage.open_read(path) as stream:
        stream.seek(end)
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        stream.seek(end - length)
        index = json.loads(stream.read(length))
    return BucketPart(path, schema, tuple(_Frame(*frame) for frame in index if frame[0] == bucket))
