"""Parquet shards: written once, atomically, with their checksum; equal records give equal bytes."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.errors import InputError, WebtextError
from pipelines.storage.bounded import DataLimit

_GROUP_ROWS = 8192
_GROUP_BYTES = 32 << 20
_READ_ROWS = 1024
# Texts are written in 0.6 times the time of level 3, for an eighth more space (benchmarks/dedup.md).
_ZSTD_LEVEL = 1
_MAX_REPEATED_BYTES = 256 << 20
_LARGE_ROW_BYTES = 32 << 10  # decoding a row alone costs 10 us
# A row takes at least the time of this much text, even without any.
_ROW_BYTES = 256
# Reads the first rows of a row group without the rest of their columns, which `pre_buffer` would read.
_PROBING: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 16}
# What pyarrow raises for a damaged file (UnicodeDecodeError: for the name of a column).
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


class ColumnError(InputError):
    """A file does not have a column of the right type."""


class MissingColumnError(ColumnError):
    """A file has no column of this name."""

    def __init__(self, message: str, column: str = "") -> None:
        super().__init__(message)
        self.column = column


def shard_name(noun: str, index: int, suffix: str = "parquet") -> str:
    """Return the name of a shard: `links-00003.parquet`."""
    return f"{noun}-{index:05d}.{suffix}"


def shard_number(path: str) -> int:
    """Return the number in the name of a shard: 3 of `links-00003.parquet` and of `pages-00003-00001.warc.gz`."""
    return int(storage.basename(path).split("-")[1].split(".")[0])


class ShardWriter:
    """Collects records and writes them as Parquet row groups of at most 8,192 rows or about 32 MiB."""

    def __init__(self, stream: storage.HashingWriter, name: str, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        self._stream = stream
        self._name = name
        self._schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self.parquet = pq.ParquetWriter(stream, schema, compression="zstd", **options)
        self.records = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Add one record by the names of its fields."""
        self._rows.append(row)
        self._count_pending(1, sum([len(value) for value in row.values() if isinstance(value, str)]))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch whose schema is the writer's."""
        self._collect_rows()
        self._batches.append(batch)
        self._count_pending(batch.num_rows, batch.nbytes)

    @property
    def entry(self) -> FileEntry:
        """The finished file, for the manifest."""
        return FileEntry(self._name, self._stream.size_bytes, self._stream.checksum)

    def close(self) -> None:
        """Write the pending rows and the footer."""
        self.flush()
        self.parquet.close()

    def _count_pending(self, rows: int, size_bytes: int) -> None:
        self.records += rows
        self._pending_rows += rows
        self._pending_bytes += size_bytes
        if self._pending_rows >= _GROUP_ROWS or self._pending_bytes >= _GROUP_BYTES:
            self.flush()

    def _collect_rows(self) -> None:
        if self._rows:
            self._batches.append(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def flush(self) -> None:
        """Write the pending rows as a row group."""
        self._collect_rows()
        if self._batches:
            self.parquet.write_table(pa.Table.from_batches(self._batches, schema=self._schema))
        self._batches = []
        self._pending_rows = self._pending_bytes = 0


@contextlib.contextmanager
def write_shard(
    folder: str, name: str, schema: pa.Schema, *, repetitive: Sequence[str] | None = None, **options: Any
) -> Iterator[ShardWriter]:
    """Yield a writer; the file appears when the block ends without an error, then `entry` describes it.

    `repetitive` names the columns (of a list: `COLUMN.list.element`) whose values repeat, if the others are known
    to be distinct: dictionaries of URLs and titles would only cost time and space. `options` are ParquetWriter's.
    """
    with storage.atomic_write(storage.join(folder, name)) as stream:
        dictionary = True if repetitive is None else list(repetitive)
        options = {"compression_level": _ZSTD_LEVEL, "use_dictionary": dictionary, **options}
        writer = ShardWriter(stream, name, schema, options)
        try:
            yield writer
            writer.close()
        except BaseException:
            # Released, so that nothing is written to the file, which will not be published, later.
            with contextlib.suppress(WebtextError, OSError, pa.ArrowException):
                writer.parquet.close()
            writer.parquet.is_open = False
            raise


def write_file(folder: str, name: str, data: bytes) -> FileEntry:
    """Write a whole file into a folder and return its entry for the manifest."""
    with storage.atomic_write(storage.join(folder, name)) as stream:
        stream.write(data)
    return FileEntry(name, stream.size_bytes, stream.checksum)


def write_array(folder: str, name: str, array: npt.NDArray[Any]) -> FileEntry:
    """Write an array as a `.npy` work file into a folder and return its entry for the manifest."""
    with storage.atomic_write(storage.join(folder, name), durable=False) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
    return FileEntry(name, stream.size_bytes, stream.checksum)


def read_batches(
    path: str, columns: Sequence[str] | None = None, row_groups: Sequence[int] | None = None, rows: int = _READ_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a Parquet file, of at most `rows` rows.

    Raises InputError, naming the file, if it is not a Parquet file or lacks one of `columns`.
    """
    with open_stream(path) as stream:
        yield from stream_batches(stream, path, columns, row_groups, rows)


def stream_batches(
    stream: BinaryIO, path: str, columns: Sequence[str] | None, row_groups: Sequence[int] | None, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an open Parquet file; see `read_batches` and `bounded_batches`."""
    file = open_parquet(stream, path, lambda schema: require_columns(path, schema.names, columns or ()))
    with damage_reported(path):
        # One thread: every core has its own worker already, and further threads only cost system time.
        batches = file.iter_batches(batch_size=rows, columns=columns, row_groups=row_groups, use_threads=False)
        yield from bounded_batches(batches, path)


def bounded_batches(batches: Iterable[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file; raise InputError if they contain too much for its size, see DataLimit."""
    limit = DataLimit(path)
    for batch in batches:
        limit.count(max(_ROW_BYTES * batch.num_rows, sum(map(_decoded_bytes, batch.columns))))
        yield batch


def _decoded_bytes(column: pa.Array) -> int:
    """Return the bytes of a column, also if its texts are in a dictionary."""
    if pa.types.is_struct(column.type):
        return sum(map(_decoded_bytes, column.flatten()))
    if pa.types.is_dictionary(column.type):
        with contextlib.suppress(pa.ArrowNotImplementedError):  # of numbers
            lengths = pc.binary_length(column.dictionary.cast(pa.large_binary()))
            return pc.sum(lengths.take(column.indices)).as_py() or 0
    return int(column.nbytes)


def row_groups_with(stream: BinaryIO, path: str, start: int, stop: int) -> tuple[range, int]:
    """Return the row groups that have rows `start` to `stop` of a Parquet file, and how many rows are before them."""
    metadata = open_parquet(stream, path).metadata
    rows = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    starts = list(itertools.accumulate(rows, initial=0))
    first = bisect.bisect_right(starts, start) - 1
    return range(first, bisect.bisect_left(starts, stop)), starts[first]


def rows_per_batch(
    stream: BinaryIO,
    path: str,
    row_groups: Sequence[int] | None,
    max_bytes: int,
    columns: Sequence[str] | None = None,
    *,
    is_verified: bool = False,
) -> tuple[int, int]:
    """Return how many rows, 1 to 1,024, fit into `max_bytes`, and how many of them to decode at a time.

    The footer has only the mean size, and a dictionary stores a value once that may be in every row. Unless webtext
    wrote the file (`is_verified`), the rows decoded at a time have at most 256 MiB even then, or there is one.
    """
    file = open_parquet(stream, path)
    groups = {number: file.metadata.row_group(number) for number in row_groups or range(file.metadata.num_row_groups)}
    means = [group.total_byte_size / max(1, group.num_rows) for group in groups.values()]
    rows = int(max(1, min(_READ_ROWS, max_bytes / max([1.0, *means]))))
    # A value is not larger than its row group.
    examined = [number for number, group in groups.items() if group.total_byte_size > _MAX_REPEATED_BYTES // rows]
    if is_verified or not examined:
        return rows, rows
    # To examine large rows would be to decode them twice. A column of a dictionary has all of it in every batch.
    if min(means) >= _LARGE_ROW_BYTES and "dictionary" not in str(file.schema_arrow.types):
        return rows, 1
    rows = max(1, min(rows, _MAX_REPEATED_BYTES // _longest_row(stream, path, file, examined, columns)))
    return rows, rows


def join_batches(batches: Iterable[pa.RecordBatch], count: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield batches joined, `count` at a time, or fewer that have `max_bytes`."""
    parts: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if parts and (len(parts) == count or size_bytes + batch.nbytes > max_bytes):
            yield pa.concat_batches(parts)
            parts, size_bytes = [], 0
        parts.append(batch)
        size_bytes += batch.nbytes
    if parts:
        yield pa.concat_batches(parts)


def _longest_row(
    stream: BinaryIO, path: str, file: pq.ParquetFile, row_groups: Sequence[int], columns: Sequence[str] | None
) -> int:
    """Return the bytes of a row with the longest value in the dictionary of each column of some row groups."""
    texts = [part for part in file.schema if part.path == part.name and part.physical_type == "BYTE_ARRAY"]
    names = [text.name for text in texts if columns is None or text.name in columns]
    reader = pq.ParquetFile(stream, metadata=file.metadata, read_dictionary=names, **_PROBING)
    longest = 1
    for number in row_groups:
        with damage_reported(path):
            first = next(reader.iter_batches(batch_size=1, columns=names, row_groups=[number], use_threads=False), None)
        parts = [part.dictionary for part in first.columns if isinstance(part, pa.DictionaryArray)] if first else []
        longest = max(longest, sum(pc.max(pc.binary_length(values)).as_py() or 0 for values in parts))
    return longest


def column_chunks(
    stream: BinaryIO, path: str, metadata: pq.FileMetaData, row_group: int, columns: Sequence[str]
) -> list[pq.ColumnChunkMetaData]:
    """Return what the footer says of columns in a row group; raise InputError if that is damaged.

    pyarrow ends the process for a damaged description, except where it reads: so the first row is read before.
    """
    file = pq.ParquetFile(stream, metadata=metadata, **_PROBING)
    with damage_reported(path):
        next(file.iter_batches(batch_size=1, columns=list(columns), row_groups=[row_group], use_threads=False), None)
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    group = metadata.row_group(row_group)
    return [
        group.column(index)
        for index, column in enumerate(paths)
        if any(column == name or column.startswith(f"{name}.") for name in columns)
    ]


def split_by_bytes(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of at most `max_bytes`, or of one row; parts are copies, so the batch can be freed."""
    if batch.num_rows < 2 or batch.nbytes <= max_bytes:
        yield batch
        return
    middle = batch.num_rows // 2
    for half in (batch.slice(0, middle), batch.slice(middle)):
        fits = half.num_rows < 2 or half.nbytes <= max_bytes
        yield from [half.take(pa.array(range(half.num_rows)))] if fits else split_by_bytes(half, max_bytes)


def read_rows(path: str, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file as dictionaries."""
    rows = 0
    for batch in read_batches(path, columns):
        check_values(path, batch, rows)
        rows += batch.num_rows
        yield from batch.to_pylist()


def open_stream(path: str) -> BinaryIO:
    """Open a Parquet file, from its end: readers begin with the footer."""
    return storage.open_read(path, start=-1)


def count_rows(path: str) -> int:
    """Return the number of rows in the footer of a Parquet file."""
    with open_stream(path) as stream:
        return int(open_parquet(stream, path).metadata.num_rows)


def open_parquet(stream: Any, path: str, check: Callable[[pa.Schema], object] = len) -> pq.ParquetFile:
    """Open a stream as Parquet, and `check` its columns; raise InputError if it has too many rows, see DataLimit."""
    with damage_reported(path, "is not a Parquet file"):
        file = pq.ParquetFile(stream)
    check(file.schema_arrow)
    rows = file.metadata.num_rows
    DataLimit(path).count(_ROW_BYTES * rows, f"{rows:,} rows, counted as {_ROW_BYTES} bytes each,")
    return file


@contextlib.contextmanager
def damage_reported(path: str, problem: str = "cannot be read as Parquet") -> Iterator[None]:
    """Raise InputError, naming the file, for what pyarrow raises if it is damaged."""
    try:
        yield
    except _DAMAGE as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: {problem} ({first_line})") from error


def require_columns(path: str, present: Sequence[str], required: Sequence[str]) -> None:
    """Raise MissingColumnError for a column that a file lacks, naming those that it has."""
    for name in required:
        if name not in present:
            raise MissingColumnError(f"{path}: has no column {name!r}; it has: {', '.join(present)}", name)
    require_distinct(path, [name for name in present if name in required])


def require_distinct(path: str, columns: Sequence[str]) -> None:
    """Raise InputError for a column that occurs twice."""
    for name, count in Counter(columns).items():
        if count > 1:
            raise InputError(f"{path}: has {count} columns {name!r}; rename or remove all but one")


def check_values(path: str, batch: pa.RecordBatch, first_row: int) -> None:
    """Raise InputError, with the row (from 0) and column, for a text that is not UTF-8, which Parquet can contain."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if rows := invalid_rows(column):
            raise InputError(
                f"{path}: row {first_row + rows[0]} has a value in column {field.name!r} that is not UTF-8; repair or "
                "remove it"
            )


def invalid_rows(column: pa.Array) -> list[int]:
    """Return the rows of a column that have a text which is not UTF-8."""

    def is_valid(values: pa.Array) -> bool:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    return [] if is_valid(column) else [row for row in range(len(column)) if not is_valid(column.slice(row, 1))]
