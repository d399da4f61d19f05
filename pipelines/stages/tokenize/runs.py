"""Sorted runs: encoded documents wait in them, under `_work`, until they are merged into shards.

A run is a file of raw tokens, `<|endoftext|>` after each document, and a table of its documents: `RUN.tokens` and
`RUN.parquet`. Both are sorted by split and order, so that the documents of a range of orders are adjacent. Each task
also writes a table of its bins: the number of tokens in each piece of the stream that shards are cut from.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.errors import DamagedShardError
from pipelines.records import shards
from pipelines.records.schemas import make_schema

SPLITS = ("train", "held-out")
# With a shuffle, a bin is a range of orders: those with the same 16 highest bits.
SHUFFLED_BINS = 1 << 16
BIN_SHIFT = 48
# How large runs become; the shards are the same for all values. The bytes are those of tokens, ids and URLs together,
# since one Arrow column of strings holds at most 2 GiB; the documents bound the table of very short ones at 100 MB.
_RUN_BYTES, _RUN_DOCUMENTS = 64 << 20, 1_000_000
# Row groups are small because a shard reads only the groups of a run that it needs.
_GROUP_ROWS = 1024
_BLOCK_BYTES = 16 << 20

_RUN_SCHEMA = make_schema(
    split="uint8", order="uint64", content="uint64", id="string", url="string?", tokens="int64", start="int64",
)  # fmt: skip
# The documents of several runs together may have more than the 2 GiB of ids or URLs that one column of strings holds.
_MERGED_SCHEMA = pa.schema(
    [field.with_type(pa.large_string()) if field.type == pa.string() else field for field in _RUN_SCHEMA]
)
_BIN_SCHEMA = make_schema(split="uint8", bin="int64", tokens="int64")


class EncodedDocuments(NamedTuple):
    """Encoded documents: the tokens of document i are `tokens[starts[i]:starts[i + 1]]`, without `<|endoftext|>`.

    `split` is an index of SPLITS, `order` the sort key within it, `content` a hash of the tokens.
    """

    ids: pa.Array
    urls: pa.Array
    split: npt.NDArray[np.uint8]
    order: npt.NDArray[np.uint64]
    content: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.unsignedinteger]
    starts: npt.NDArray[np.int64]


class RunWriter:
    """Collects the documents of one task and writes a run for each 64 MiB of tokens, ids and URLs."""

    def __init__(self, output: str, task: int, *, end_of_text: int, shuffled: bool) -> None:
        self._output = output
        self._task = task
        self._end_of_text = end_of_text
        self._shuffled = shuffled
        self._pending: list[EncodedDocuments] = []
        self._bytes = self._documents = 0
        self._files: list[FileEntry] = []
        self._bins = [_BIN_SCHEMA.empty_table()]
        # The tokens and documents of each split.
        self.counts = {f"{split}_{noun}": 0 for noun in ("tokens", "documents") for split in SPLITS}

    def add(self, documents: EncodedDocuments) -> None:
        """Add documents; write a run once enough of them are pending."""
        self._pending.append(documents)
        self._bytes += documents.tokens.nbytes + documents.ids.nbytes + documents.urls.nbytes
        self._documents += len(documents.order)
        if self._bytes >= _RUN_BYTES or self._documents >= _RUN_DOCUMENTS:
            self._write()

    def finish(self) -> tuple[FileEntry, ...]:
        """Write the pending documents and the bins; return all files."""
        if self._pending:
            self._write()
        bins = pa.concat_tables(self._bins).group_by(["split", "bin"], use_threads=False).aggregate([("tokens", "sum")])
        bins = bins.rename_columns(_BIN_SCHEMA.names).sort_by([("split", "ascending"), ("bin", "ascending")])
        return (*self._files, self._write_table(f"bins-{self._task:05d}", bins.cast(_BIN_SCHEMA)))

    def _write(self) -> None:
        number = len(self._files)
        name = f"run-{self._task:05d}-{number:05d}"
        table, rows = self._sorted()
        path = storage.join(self._output, WORK, f"{name}.tokens")
        # Not listed in the journal: a resumed run checks the tokens against the table, see `is_intact`.
        with storage.atomic_write(path, durable=False) as stream:
            for block in _gather_tokens(self._pending, rows, self._end_of_text):
                stream.write(block.data)
        self._files.append(self._write_table(name, table))
        split, order, tokens = (table.column(name).to_numpy() for name in ("split", "order", "tokens"))
        bins = order >> np.uint64(BIN_SHIFT) if self._shuffled else np.full(len(split), number)
        self._bins.append(pa.table([split, bins.astype(np.int64), tokens], schema=_BIN_SCHEMA))
        for index, split_name in enumerate(SPLITS):
            self.counts[f"{split_name}_tokens"] += int(tokens[split == index].sum())
            self.counts[f"{split_name}_documents"] += int((split == index).sum())
        self._pending = []
        self._bytes = self._documents = 0

    def _sorted(self) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return the table of the pending documents in their order, and the position of each among the pending."""
        split, order, content = (
            np.concatenate([getattr(batch, name) for batch in self._pending]) for name in ("split", "order", "content")
        )
        tokens = np.concatenate([np.diff(batch.starts) for batch in self._pending]) + 1
        rows = np.lexsort((content, order, split))
        columns = {
            "split": split[rows],
            "order": order[rows],
            "content": content[rows],
            "id": pa.chunked_array([batch.ids for batch in self._pending], pa.string()).take(pa.array(rows)),
            "url": pa.chunked_array([batch.urls for batch in self._pending], pa.string()).take(pa.array(rows)),
            "tokens": tokens[rows],
            "start": np.cumsum(tokens[rows]) - tokens[rows],
        }
        return pa.table(columns, schema=_RUN_SCHEMA), rows

    def _write_table(self, name: str, table: pa.Table) -> FileEntry:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=_GROUP_ROWS, compression="zstd", use_dictionary=False)
        return shards.write_file(self._output, storage.join(WORK, f"{name}.parquet"), sink.getvalue())


def content_hashes(
    tokens: npt.NDArray[np.unsignedinteger], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return 64 bits of each document's tokens: they order documents of equal ids, and verify runs."""
    data = memoryview(tokens.view(np.uint8).data)
    firsts, lasts = ((places * tokens.itemsize).tolist() for places in (starts, stops))
    sha256 = hashlib.sha256
    digests = [sha256(data[first:last]).digest()[:8] for first, last in zip(firsts, lasts, strict=True)]
    return np.frombuffer(b"".join(digests), "<u8")


def is_intact(run: str, dtype: np.dtype[np.unsignedinteger], end_of_text: int) -> bool:
    """Return whether the tokens of a run are those that its table, which has a checksum, describes."""
    if not storage.exists(f"{run}.tokens"):
        return False
    with storage.open_read(f"{run}.tokens") as stream:
        for batch in shards.read_batches(f"{run}.parquet", ["content", "tokens"]):
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


def runs_of(entry: ShardEntry, output: str) -> list[str]:
    """Return the runs that a task wrote into the folder `output`: the paths of their files without suffix."""
    return [path.removesuffix(".parquet") for path in _paths(entry, output, "run-")]


def sum_bins(entries: Sequence[ShardEntry], output: str, *, shuffled: bool) -> npt.NDArray[np.int64]:
    """Return the tokens by split and bin: summed over all tasks if they are shuffled, else with one bin per run."""
    totals = np.zeros((len(SPLITS), SHUFFLED_BINS if shuffled else 0), np.int64)
    for entry in entries:
        bins = np.zeros((len(SPLITS), SHUFFLED_BINS if shuffled else len(runs_of(entry, output))), np.int64)
        [path] = _paths(entry, output, "bins-")
        for batch in shards.read_batches(path):
            split, bin, tokens = (batch.column(name).to_numpy() for name in _BIN_SCHEMA.names)
            bins[split, bin] = tokens
        totals = totals + bins if shuffled else np.concatenate([totals, bins], axis=1)
    return totals


def _paths(entry: ShardEntry, output: str, prefix: str) -> list[str]:
    names = [file.name for file in entry.files if storage.basename(file.name).startswith(prefix)]
    return [storage.join(output, name) for name in names]


def read_documents(run: str, split: int, low: int, high: int) -> pa.Table:
    """Return the rows of a run in a split with orders from `low` to `high`, both included."""
    order = pc.field("order")
    is_in_range = (order >= pa.scalar(low, pa.uint64())) & (order <= pa.scalar(high, pa.uint64()))
    is_in_split = pc.field("split") == pa.scalar(split, pa.uint8())
    with shards.open_stream(f"{run}.parquet") as stream:
        # The statistics of the row groups tell which of them have to be read.
        return pq.read_table(stream, filters=is_in_split & is_in_range, use_threads=False).cast(_MERGED_SCHEMA)


def copy_tokens(
    run: str,
    sources: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    out: npt.NDArray[np.unsignedinteger],
) -> None:
    """Copy pieces of a run to their places in `out`: `counts` tokens from `sources` to `targets`, sources ascending.

    The pieces of a shard follow each other in a run, except where documents of equal ids are in several shards. Raises
    DamagedShardError if the file is truncated.
    """
    firsts, places, sizes = ((numbers * out.itemsize).tolist() for numbers in (sources, targets, counts))
    position, end = firsts[0], firsts[-1] + sizes[-1]
    view = memoryview(out.view(np.uint8).data)
    with storage.open_read(f"{run}.tokens", start=position, size=end - position) as stream:
        read = cast(io.BufferedReader, stream).readinto  # looked up once: fsspec's local file does so by a function
        for first, place, size in zip(firsts, places, sizes, strict=True):
            if first != position:
                stream.seek(first)
            if read(view[place : place + size]) != size:
                raise DamagedShardError(f"{run}.tokens: is truncated; re-run `webtext tokenize` to rebuild it")
            position = first + size


def _gather_tokens(
    batches: list[EncodedDocuments], rows: npt.NDArray[np.int64], end_of_text: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """Yield the tokens of documents in the order of `rows`, each followed by `<|endoftext|>`, in blocks."""
    firsts = np.cumsum([0, *(len(batch.order) for batch in batches)])
    numbers = np.searchsorted(firsts, rows, side="right") - 1
    end = np.array([end_of_text], batches[0].tokens.dtype)
    block: list[npt.NDArray[np.unsignedinteger]] = []
    size = 0
    for number, row in zip(numbers.tolist(), (rows - firsts[numbers]).tolist(), strict=True):
        starts = batches[number].starts
        tokens = batches[number].tokens[starts[row] : starts[row + 1]]
        block += [tokens, end]
        size += tokens.nbytes
        # Small enough that the allocator reuses the memory: new pages cost more than the copy.
        if size >= _BLOCK_BYTES:
            yield np.concatenate(block)
            block, size = [], 0
    if block:
        yield np.concatenate(block)
