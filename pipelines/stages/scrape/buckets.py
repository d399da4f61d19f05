"""Work files that hold many buckets: one Parquet file, and in it row groups of one bucket each.

One file a task, instead of one a task and bucket, keeps 250 months in 64 buckets at 250 files; what waits in memory is
bounded in bytes, whatever the number of buckets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core import shards, storage
from pipelines.core.errors import WebtextError

_FLUSH_BYTES = 48 << 20
_INDEX_KEY = b"buckets_of_row_groups"


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
        try:
            yield written
            written.writer.close()
        except BaseException:
            written.writer.abandon()
            raise
    written.size_bytes, written.sha256 = stream.size_bytes, stream.sha256


class BucketWriter:
    """Collects batches of rows and writes them as row groups by bucket, about 48 MiB at a time."""

    def __init__(self, stream: storage.HashingWriter, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._buckets: list[int] = []
        self._pending_bytes = 0
        self._written: list[int] = []
        self._writer = pq.ParquetWriter(stream, schema, compression="zstd", compression_level=1)

    def write(self, batch: pa.RecordBatch, buckets: Sequence[int]) -> None:
        """Add a batch, and for each of its rows the bucket."""
        self._batches.append(batch)
        self._buckets.extend(buckets)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is pending, the buckets of the row groups, and the footer."""
        self._flush()
        self._writer.add_key_value_metadata({_INDEX_KEY: json.dumps(self._written)})
        self._writer.close()

    def abandon(self) -> None:
        """Let go of a file that will not get its name, so that nothing is written to it later."""
        with contextlib.suppress(WebtextError, OSError, pa.ArrowException):
            self._writer.close()
        self._writer.is_open = False

    def _flush(self) -> None:
        if not self._batches:
            return
        buckets = np.array(self._buckets)
        order = np.argsort(buckets, kind="stable")
        rows = pa.Table.from_batches(self._batches, schema=self._schema).combine_chunks().take(order)
        found, starts = np.unique(buckets[order], return_index=True)
        for bucket, start, end in zip(found, starts, [*starts[1:], len(order)], strict=True):
            self._writer.write_table(rows.slice(start, end - start), row_group_size=max(1, end - start))
            self._written.append(int(bucket))
        self._batches, self._buckets, self._pending_bytes = [], [], 0


@dataclasses.dataclass(frozen=True)
class BucketPart:
    """The rows of one bucket in one work file; `size_bytes` before compression."""

    path: str
    row_groups: tuple[int, ...]
    rows: int
    size_bytes: int

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of at most 1,024."""
        if self.row_groups:
            yield from shards.read_batches(self.path, columns, row_groups=list(self.row_groups))


def bucket_part(path: str, bucket: int) -> BucketPart:
    """Find the rows of a bucket in a work file."""
    with storage.open_read(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
    written = json.loads(metadata.metadata[_INDEX_KEY])
    row_groups = tuple(group for group, its_bucket in enumerate(written) if its_bucket == bucket)
    found = [metadata.row_group(group) for group in row_groups]
    return BucketPart(path, row_groups, sum(g.num_rows for g in found), sum(g.total_byte_size for g in found))
