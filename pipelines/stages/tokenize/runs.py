"""Sorted runs: what is encoded waits in them, under `_work`, until the shards are put together.

A run is a file of raw tokens, `<|endoftext|>` after each document, and a table of its documents. Both are sorted by
split and order, so that the documents of a range of orders stand together. Beside the runs of a task stands a table of
its bins: how many tokens fall into each piece of the stream that shards are cut from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core import shards, storage
from pipelines.core.errors import DamagedShardError
from pipelines.core.manifest import FileEntry

SPLITS = ("train", "held-out")
# With a shuffle, a bin is a range of orders: those with the same 16 highest bits.
SHUFFLED_BINS = 1 << 16
_BIN_SHIFT = np.uint64(48)
LAST_ORDER = 2**64 - 1

# Of tokens, ids and URLs together: in one column of strings Arrow holds no more than 2 GiB.
_RUN_BYTES = 64 << 20
_RUN_DOCUMENTS = 1_000_000
_CHUNK_BYTES = 16 << 20
# Small, since a shard reads of each run only the groups that it needs.
_GROUP_ROWS = 1024

_RUN_SCHEMA = pa.schema(
    [
        pa.field("split", pa.uint8(), nullable=False),
        pa.field("order", pa.uint64(), nullable=False),
        pa.field("content", pa.uint64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
    ]
)
_BIN_SCHEMA = pa.schema(
    [
        pa.field("split", pa.uint8(), nullable=False),
        pa.field("bin", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
    ]
)


class EncodedDocuments(NamedTuple):
    """Encoded documents: the tokens of document i are `tokens[starts[i]:starts[i + 1]]`, without the one that ends it.

    `split` is an index of SPLITS, `order` where the document goes in it, `content` a hash of its tokens.
    """

    ids: pa.Array
    urls: pa.Array
    split: npt.NDArray[np.uint8]
    order: npt.NDArray[np.uint64]
    content: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.unsignedinteger]
    starts: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Run:
    """The two files of a run."""

    tokens: str
    documents: str


class RunWriter:
    """Collects the documents of one task and writes a run for each 64 MiB of tokens, ids and URLs."""

    def __init__(self, output: str, work: str, task: int, end_of_text: int, shuffled: bool) -> None:
        self._output = output
        self._stem = storage.join(work, f"run-{task:05d}")
        self._bins_name = storage.join(work, f"bins-{task:05d}.parquet")
        self._end_of_text = end_of_text
        self._shuffled = shuffled
        self._waiting: list[EncodedDocuments] = []
        self._bytes = self._documents = 0
        self._files: list[FileEntry] = []
        self._bins = [np.zeros(0, np.int64) for _ in SPLITS]
        self.tokens = dict.fromkeys(SPLITS, 0)
        self.documents = dict.fromkeys(SPLITS, 0)

    def add(self, documents: EncodedDocuments) -> None:
        """Add documents; write a run when enough of them wait."""
        self._waiting.append(documents)
        self._bytes += documents.tokens.nbytes + documents.ids.nbytes + documents.urls.nbytes
        self._documents += len(documents.order)
        if self._bytes >= _RUN_BYTES or self._documents >= _RUN_DOCUMENTS:
            self._write()

    def finish(self) -> tuple[FileEntry, ...]:
        """Write what waits and the bins; return all files."""
        if self._waiting:
            self._write()
        return (*self._files, shards.write_file(self._output, self._bins_name, _parquet(self._bin_table())))

    def _write(self) -> None:
        number = len(self._files)
        stem = f"{self._stem}-{number:05d}"
        table, gathered = self._sorted()
        path = storage.join(self._output, f"{stem}.tokens")
        # Neither durable nor with a checksum: what a run that goes on finds is held to the table, see `is_intact`.
        with storage.atomic_write(path, durable=False, hashed=False) as stream:
            for block in _gathered(self._waiting, gathered, self._end_of_text):
                stream.write(block.data)
        self._files.append(shards.write_file(self._output, f"{stem}.parquet", _parquet(table)))
        self._count(table, number)
        self._waiting = []
        self._bytes = self._documents = 0

    def _sorted(self) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return the table of the waiting documents in their order, and which of them each row is."""
        split, order, content = (
            np.concatenate([getattr(each, name) for each in self._waiting]) for name in ("split", "order", "content")
        )
        tokens = np.concatenate([np.diff(each.starts) for each in self._waiting]) + 1
        rows = np.lexsort((content, order, split))
        columns = {
            "split": split[rows],
            "order": order[rows],
            "content": content[rows],
            "id": pa.chunked_array([each.ids for each in self._waiting], pa.string()).take(pa.array(rows)),
            "url": pa.chunked_array([each.urls for each in self._waiting], pa.string()).take(pa.array(rows)),
            "tokens": tokens[rows],
            "start": np.cumsum(tokens[rows]) - tokens[rows],
        }
        return pa.table(columns, schema=_RUN_SCHEMA), rows

    def _count(self, table: pa.Table, number: int) -> None:
        split, tokens = (table.column(name).to_numpy() for name in ("split", "tokens"))
        bins = bins_of(table.column("order").to_numpy()) if self._shuffled else np.full(len(split), number, np.int64)
        for index, name in enumerate(SPLITS):
            chosen = split == index
            counted = np.bincount(bins[chosen], tokens[chosen], minlength=len(self._bins[index])).astype(np.int64)
            counted[: len(self._bins[index])] += self._bins[index]
            self._bins[index] = counted
            self.tokens[name] += int(tokens[chosen].sum())
            self.documents[name] += int(chosen.sum())

    def _bin_table(self) -> pa.Table:
        parts = []
        for index, totals in enumerate(self._bins):
            filled = np.flatnonzero(totals)
            parts.append([np.full(len(filled), index, np.uint8), filled, totals[filled]])
        columns = [np.concatenate([part[column] for part in parts]) for column in range(3)]
        return pa.table(dict(zip(_BIN_SCHEMA.names, columns, strict=True)), schema=_BIN_SCHEMA)


def content_hashes(
    tokens: npt.NDArray[np.unsignedinteger], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return 64 bits of each document's tokens: they order those of equal ids, and tell whether a run is as written."""
    whole = memoryview(tokens.view(np.uint8).data)
    firsts, lasts = ((places * tokens.itemsize).tolist() for places in (starts, stops))
    sha256 = hashlib.sha256
    digests = [sha256(whole[first:last]).digest()[:8] for first, last in zip(firsts, lasts, strict=True)]
    return np.frombuffer(b"".join(digests), "<u8")


def is_intact(run: Run, dtype: np.dtype[np.unsignedinteger], end_of_text: int) -> bool:
    """Tell whether the tokens of a run, whose table is as written, are those that the table lists."""
    if not storage.exists(run.tokens):
        return False
    with storage.open_read(run.tokens) as stream:
        for batch in shards.read_batches(run.documents, ["content", "tokens"], rows=_GROUP_ROWS):
            ends = np.cumsum(batch.column("tokens").to_numpy())
            data = stream.read(int(ends[-1]) * dtype.itemsize)
            if len(data) != ends[-1] * dtype.itemsize:
                return False
            tokens = np.frombuffer(data, dtype)
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            is_same = content_hashes(tokens, starts, ends - 1) == batch.column("content").to_numpy()
            if not is_same.all() or (tokens[ends - 1] != end_of_text).any():
                return False
        return not stream.read(1)


def bins_of(order: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the bins of shuffled documents."""
    return (order >> _BIN_SHIFT).astype(np.int64)


def orders_of_bins(first: int, last: int) -> tuple[int, int]:
    """Return the lowest and the highest order of a range of bins, both included."""
    shift = int(_BIN_SHIFT)
    return first << shift, ((last + 1) << shift) - 1


def read_bins(path: str, bins: int) -> npt.NDArray[np.int64]:
    """Return the tokens by split and bin of one task, shape (2, bins)."""
    totals = np.zeros((len(SPLITS), bins), np.int64)
    for batch in shards.read_batches(path):
        split, bin, tokens = (batch.column(name).to_numpy() for name in _BIN_SCHEMA.names)
        totals[split, bin] = tokens
    return totals


def read_documents_of(run: Run, split: int, low: int, high: int) -> pa.Table:
    """Return the rows of a run that are of a split and have orders from `low` to `high`, both included."""
    with storage.open_read(run.documents) as stream:
        file = shards.open_parquet(stream, run.documents)
        table = file.read_row_groups(_groups_of(file.metadata, split, low, high))
    is_wanted = pc.and_(
        pc.equal(table.column("split"), pa.scalar(split, pa.uint8())),
        pc.and_(
            pc.greater_equal(table.column("order"), pa.scalar(low, pa.uint64())),
            pc.less_equal(table.column("order"), pa.scalar(high, pa.uint64())),
        ),
    )
    return table.filter(is_wanted)


def with_long_columns(table: pa.Table) -> pa.Table:
    """Return a table whose columns of strings may have over 2 GiB, so that its rows can be put in another order."""
    wide = [
        pa.field(each.name, pa.large_string() if each.type == pa.string() else each.type, each.nullable)
        for each in table.schema
    ]
    return table.cast(pa.schema(wide))


def copy_tokens(
    run: Run,
    sources: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    out: npt.NDArray[np.unsignedinteger],
) -> None:
    """Copy pieces of a run to their places in `out`: `counts` tokens from `sources` to `targets`, sources ascending.

    Reads 16 MiB at a time. Raises DamagedShardError where the file ends too early.
    """
    width = out.dtype.itemsize
    # One buffer for all reads: fresh memory costs more than what is copied into it.
    buffer = np.empty(min(_CHUNK_BYTES // width, int(counts.sum() + sources[-1] - sources[0])), out.dtype)
    with storage.open_read(run.tokens) as stream:
        for group in _neighbours(sources, targets, counts, _CHUNK_BYTES // width):
            start, stop = group[0][0], group[-1][0] + group[-1][2]
            stream.seek(start * width)
            read = buffer[: stop - start]
            if _filled(stream, read.data.cast("B")) != read.nbytes:
                raise DamagedShardError(f"{run.tokens}: is damaged (ends too early); run `webtext tokenize` again")
            for source, target, count in group:
                out[target : target + count] = read[source - start : source - start + count]


def _filled(stream: BinaryIO, target: memoryview) -> int:
    """Read until a buffer is full or the file ends; return the bytes read."""
    done = 0
    while done < len(target) and (got := cast(io.BufferedIOBase, stream).readinto(target[done:])):
        done += got
    return done


def _neighbours(
    sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int
) -> Iterator[list[tuple[int, int, int]]]:
    """Yield pieces in groups that span at most so many tokens; a longer piece is divided."""
    group: list[tuple[int, int, int]] = []
    for source, target, count in zip(sources.tolist(), targets.tolist(), counts.tolist(), strict=True):
        for done in range(0, count, most):
            piece = (source + done, target + done, min(most, count - done))
            if group and piece[0] + piece[2] - group[0][0] > most:
                yield group
                group = []
            group.append(piece)
    if group:
        yield group


def _groups_of(metadata: pq.FileMetaData, split: int, low: int, high: int) -> list[int]:
    """Return the row groups that may hold such documents, by their statistics."""

    def may_hold(group: int) -> bool:
        splits, orders = (metadata.row_group(group).column(column).statistics for column in (0, 1))
        return bool(splits.min <= split <= splits.max and orders.min <= high and low <= orders.max)

    return [group for group in range(metadata.num_row_groups) if may_hold(group)]


def _gathered(
    waiting: list[EncodedDocuments], rows: npt.NDArray[np.int64], end_of_text: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Yield the tokens of documents in the order of `rows`, each with the one that ends it, in bounded blocks."""
    firsts = np.cumsum([0, *(len(each.order) for each in waiting)])
    batches = np.searchsorted(firsts, rows, side="right") - 1
    block: list[npt.NDArray[np.unsignedinteger]] = []
    size = 0
    end = np.array([end_of_text], waiting[0].tokens.dtype)
    for batch, row in zip(batches.tolist(), (rows - firsts[batches]).tolist(), strict=True):
        each = waiting[batch]
        tokens = each.tokens[each.starts[row] : each.starts[row + 1]]
        block += [tokens, end]
        size += tokens.nbytes
        if size >= _CHUNK_BYTES:
            yield np.concatenate(block)
            block, size = [], 0
    if block:
        yield np.concatenate(block)


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=_GROUP_ROWS, compression="zstd", use_dictionary=False)
    return sink.getvalue()
