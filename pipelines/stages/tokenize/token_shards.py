"""The second phase: token shards as nanoGPT, llm.c and NumPy read them, each with a table of its documents."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import progress, shards, storage
from pipelines.core.errors import DamagedShardError, UsageError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.tokenize.plan import ShardPlan
from pipelines.stages.tokenize.runs import SPLITS, copy_tokens, read_documents_of, with_long_columns

LLMC_HEADER_BYTES = 1024
# llm.c's headers by the bytes of a token: magic number and version.
_LLMC_KINDS = {2: (20240520, 1), 4: (20240801, 7)}
_LLMC_MOST_TOKENS = 2**31 - 1
_GROUP_ROWS = 8192
_GROUP_BYTES = 32 << 20

TOKEN_DOCUMENTS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("document_offset", pa.int64(), nullable=False),
    ]
)


@dataclasses.dataclass(frozen=True)
class TokenFormat:
    """How tokens stand in a file: `nanogpt`, `llmc` or `npy`, and numpy's name of their type, always little-endian."""

    name: str
    dtype: str

    @property
    def little_endian(self) -> np.dtype[np.unsignedinteger]:
        """The type of a token in the file."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def suffix(self) -> str:
        """How the names of the files end."""
        return "npy" if self.name == "npy" else "bin"

    @property
    def header_bytes(self) -> int:
        """The bytes before the first token, the same for every shard."""
        return len(self.header(1))

    def header(self, tokens: int) -> bytes:
        """Return the header of a file of so many tokens."""
        if self.name == "npy":
            return _npy_header(self.little_endian, tokens)
        if self.name == "nanogpt":
            return b""
        magic, version = _LLMC_KINDS[self.little_endian.itemsize]
        values = np.zeros(LLMC_HEADER_BYTES // 4, dtype="<i4")
        values[:3] = magic, version, tokens
        return values.tobytes()

    def check(self, shard_tokens: int) -> None:
        """Raise UsageError where a shard would have more tokens than its header can say."""
        if self.name == "llmc" and shard_tokens > _LLMC_MOST_TOKENS:
            raise UsageError(f"--shard-tokens {shard_tokens}: llm.c counts up to {_LLMC_MOST_TOKENS}; give fewer")


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """One shard to write into the folder `output`."""

    plan: ShardPlan
    shuffle: bool
    form: TokenFormat
    output: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.plan.split}-{self.plan.index:05d}"


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """What of each document stands in a shard, as arrays.

    `rows` of the table of documents, `targets` in the shard, `counts` of tokens, `offsets` in the document.
    """

    rows: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


def token_format(name: str, vocabulary_size: int) -> TokenFormat:
    """Return the format for a vocabulary: 16 bits a token, 32 past 65,536 entries."""
    return TokenFormat(name, "uint16" if vocabulary_size <= 1 << 16 else "uint32")


def write_token_shard(task: ShardTask) -> TaskResult:
    """Write `<split>-N.bin` (or `.npy`) with exactly the planned tokens, and the table of the documents in it."""
    documents = _documents(task)
    pieces = _pieces(documents.column("tokens").to_numpy(), task.plan)
    tokens = _collected(task, documents, pieces)
    name = shards.shard_name(task.plan.split, task.plan.index, task.form.suffix)
    with storage.atomic_write(storage.join(task.output, name)) as stream:
        stream.write(task.form.header(len(tokens)))
        stream.write(tokens.data)
    files = (FileEntry(name, stream.size_bytes, stream.sha256), _write_documents(task, documents, pieces))
    progress.advance(len(tokens))
    return TaskResult(counts={"pieces": len(pieces.rows)}, files=files)


def documents_file(name: str) -> str:
    """Return the name of the table of a token shard's documents."""
    return f"{name.rpartition('.')[0]}-documents.parquet"


def _documents(task: ShardTask) -> pa.Table:
    """Return the rows of all documents of the shard's bins in their order, each with the number of its run."""
    plan, split = task.plan, SPLITS.index(task.plan.split)
    tables = []
    for number, run in enumerate(plan.runs):
        rows = read_documents_of(run, split, plan.low, plan.high)
        tables.append(rows.append_column("run", pa.array(np.full(rows.num_rows, number, np.int64))))
    together = with_long_columns(pa.concat_tables(tables))
    if not task.shuffle:
        return together
    # Documents of equal ids have equal orders; those that are equal in all of this are equal in all that is written.
    return together.sort_by([(name, "ascending") for name in ("order", "content", "id", "url")])


def _pieces(tokens: npt.NDArray[np.int64], plan: ShardPlan) -> _Pieces:
    """Return what is left of documents of so many tokens when the stream of them is cut to the shard."""
    ends = np.cumsum(tokens) - plan.skip
    starts = ends - tokens
    first, last = np.maximum(starts, 0), np.minimum(ends, plan.tokens)
    rows = np.flatnonzero(first < last)
    counts = (last - first)[rows]
    if int(counts.sum()) != plan.tokens:
        raise DamagedShardError(
            f"{plan.split}-{plan.index:05d}: the documents of its runs are not those that were counted; "
            "run `webtext tokenize` again with --overwrite"
        )
    return _Pieces(rows, first[rows], counts, (first - starts)[rows])


def _collected(task: ShardTask, documents: pa.Table, pieces: _Pieces) -> npt.NDArray[np.unsignedinteger]:
    out = np.empty(task.plan.tokens, task.form.little_endian)
    runs = documents.column("run").to_numpy()[pieces.rows]
    sources = documents.column("start").to_numpy()[pieces.rows] + pieces.offsets
    for number, run in enumerate(task.plan.runs):
        chosen = np.flatnonzero(runs == number)
        chosen = chosen[np.argsort(sources[chosen], kind="stable")]
        if len(chosen):
            copy_tokens(run, sources[chosen], pieces.targets[chosen], pieces.counts[chosen], out)
    return out


def _write_documents(task: ShardTask, documents: pa.Table, pieces: _Pieces) -> FileEntry:
    kept = documents.take(pa.array(pieces.rows))
    columns = [kept.column("id"), kept.column("url"), pieces.targets, pieces.counts, pieces.offsets]
    table = pa.table(dict(zip(TOKEN_DOCUMENTS_SCHEMA.names, columns, strict=True)))
    name = documents_file(f"{task.name}.{task.form.suffix}")
    with shards.write_shard(task.output, name, TOKEN_DOCUMENTS_SCHEMA) as shard:
        for batch in table.to_batches(max_chunksize=_GROUP_ROWS):
            for part in shards.split_by_bytes(batch, _GROUP_BYTES):
                # A copy, since what is cast must lie within the first 2 GiB of its column.
                copied = part.take(pa.array(np.arange(part.num_rows)))
                shard.writer.write_batch(copied.cast(TOKEN_DOCUMENTS_SCHEMA))
    return shard.entry


def _npy_header(dtype: np.dtype[np.unsignedinteger], tokens: int) -> bytes:
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (tokens,)}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()
