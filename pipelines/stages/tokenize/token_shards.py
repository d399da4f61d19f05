"""The second phase: files of tokens as nanoGPT, llm.c and NumPy read them, each with a table of its documents."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import DamagedShardError, UsageError
from pipelines.records import shards
from pipelines.records.schemas import make_schema
from pipelines.stages.tokenize.runs import BIN_SHIFT, SPLITS, copy_tokens, read_documents
from pipelines.tokenizers.formats import vocabulary_size

META = "meta.pkl"
# nanoGPT's names of the splits; it maps one file of each into memory.
_NANOGPT_FILES = {"train": "train", "held-out": "val"}
LLMC_HEADER_BYTES = 1024
# llm.c's magic number and version, by the bytes per token.
_LLMC_MAGIC = {2: (20240520, 1), 4: (20240801, 7)}
_LLMC_MAX_TOKENS = 2**31 - 1
_GROUP_ROWS = 8192
_GROUP_BYTES = 32 << 20
_MAX_ORDER = 2**64 - 1

Result = TypeVar("Result")
TOKEN_DOCUMENTS_SCHEMA = make_schema(
    id="string", url="string?", offset="int64", tokens="int64", document_offset="int64",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TokenFormat:
    """The layout of a token file: `raw`, `nanogpt`, `llmc` or `npy`; the NumPy type of a token, little-endian."""

    name: str
    dtype: str

    @property
    def little_endian(self) -> np.dtype[np.unsignedinteger]:
        """The type of a token in the file."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def suffix(self) -> str:
        """The suffix of the file names."""
        return "npy" if self.name == "npy" else "bin"

    @property
    def split_files(self) -> Mapping[str, str]:
        """The name of the file of each split, without suffix; empty if splits are divided into shards."""
        return _NANOGPT_FILES if self.name == "nanogpt" else {}

    @property
    def header_bytes(self) -> int:
        """The bytes before the first token, the same for every shard."""
        return len(self.header(1))

    def header(self, tokens: int) -> bytes:
        """Return the header of a file with a number of tokens."""
        if self.name in ("raw", "nanogpt"):
            return b""
        if self.name == "npy":
            stream = io.BytesIO()
            descr = np.lib.format.dtype_to_descr(self.little_endian)
            fields = {"descr": descr, "fortran_order": False, "shape": (tokens,)}
            np.lib.format.write_array_header_1_0(stream, fields)
            return stream.getvalue()
        values = np.zeros(LLMC_HEADER_BYTES // 4, dtype="<i4")
        values[:3] = *_LLMC_MAGIC[self.little_endian.itemsize], tokens
        return values.tobytes()

    def check(self, shard_tokens: int) -> None:
        """Raise UsageError if readers of the format cannot count a shard's tokens or store their ids."""
        if self.name == "nanogpt" and self.little_endian.itemsize != 2:
            raise UsageError("--format nanogpt: nanoGPT reads ids of 16 bits, up to 65,536 entries; use --format raw")
        if self.name == "llmc" and shard_tokens > _LLMC_MAX_TOKENS:
            raise UsageError(f"--shard-tokens {shard_tokens}: llm.c counts up to {_LLMC_MAX_TOKENS}; use fewer")


@dataclasses.dataclass(frozen=True)
class TokenShard:
    """A shard: `tokens` tokens after the first `skip` of the documents in `runs` with orders from `low` to `high`.

    `runs` are positions among all runs: sending 100,000 names with each task took the driver 0.4 s.
    """

    split: str
    index: int
    runs: range
    low: int
    high: int
    skip: int
    tokens: int

    @property
    def name(self) -> str:
        """The name of the shard, such as `train-00003`."""
        return f"{self.split}-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class TokenFile:
    """A file of tokens, by its name without suffix, and the shards that it consists of: one, or the whole split."""

    name: str
    split: str
    shards: tuple[TokenShard, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(shard.tokens for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class MergeContext:
    """What all files of tokens share: their format, and all runs, of documents that are shuffled or not."""

    output: str
    form: TokenFormat
    shuffled: bool
    runs: Sequence[str]


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The part of each document that is in a shard.

    `rows` of the table of documents, `targets` in the shard, `counts` of tokens, `offsets` in the document.
    """

    rows: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


def token_format(name: str, entries: int) -> TokenFormat:
    """Return the format for a vocabulary: 16 bits per token, 32 above 65,536 entries."""
    return TokenFormat(name, "uint16" if entries <= 1 << 16 else "uint32")


def cut_files(
    bins: npt.NDArray[np.int64], runs: int, form: TokenFormat, *, shuffled: bool, shard_tokens: int
) -> list[TokenFile]:
    """Return the files of both splits, given the number of runs and the tokens by split and bin."""
    files: list[TokenFile] = []
    for split, split_bins in zip(SPLITS, bins, strict=True):
        cut = []
        for index, (first, last, skip, tokens) in enumerate(cut_bins(split_bins, shard_tokens)):
            needed, low, high = range(first, last + 1), 0, _MAX_ORDER
            if shuffled:
                needed, low, high = range(runs), first << BIN_SHIFT, ((last + 1) << BIN_SHIFT) - 1
            cut.append(TokenShard(split, index, needed, low=low, high=high, skip=skip, tokens=tokens))
        if form.split_files and cut:
            files.append(TokenFile(form.split_files[split], split, tuple(cut)))
        else:
            files += [TokenFile(shard.name, split, (shard,)) for shard in cut]
    return files


def cut_bins(bins: npt.NDArray[np.int64], shard_tokens: int) -> list[tuple[int, int, int, int]]:
    """Return first bin, last bin, tokens to skip and tokens of each shard, given the number of tokens in each bin."""
    ends = np.cumsum(bins)
    total = int(ends[-1]) if len(ends) else 0
    cut = []
    for start in range(0, total, shard_tokens):
        stop = min(start + shard_tokens, total)
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        cut.append((first, last, start - int(ends[first] - bins[first]), stop - start))
    return cut


def write_token_file(file: TokenFile, context: MergeContext) -> TaskResult:
    """Write a `.bin` (or `.npy`) file with exactly its tokens, and the table of its documents.

    One shard at a time is in memory.
    """
    form = context.form
    name = f"{file.name}.{form.suffix}"
    start = 0
    with (
        storage.atomic_write(storage.join(context.output, name)) as stream,
        shards.write_shard(context.output, documents_file(name), TOKEN_DOCUMENTS_SCHEMA) as table,
    ):
        stream.write(form.header(file.tokens))
        for shard in file.shards:
            runs = context.runs[shard.runs.start : shard.runs.stop]
            documents = _read_shard_documents(shard, runs, context.shuffled)
            lengths = documents.column("tokens").to_numpy()
            pieces = _cut_pieces(lengths, shard)
            stream.write(_merge_tokens(shard, runs, documents, pieces, form).data)
            listed = _whole_documents(pieces, lengths) if form.split_files else pieces
            _write_documents(table, documents, listed, start)
            start += shard.tokens
            progress.advance(shard.tokens)
    files = (FileEntry(name, stream.size_bytes, stream.checksum), table.entry)
    return TaskResult(counts={"document_pieces": table.records}, files=files)


def write_meta(output: str, tokenizer: Tokenizer) -> FileEntry:
    """Write the `meta.pkl` of nanoGPT: the number of ids, and their texts.

    nanoGPT's `train.py` reads `vocab_size`; its `sample.py` decodes ids by `itos`, and encodes a prompt character by
    character by `stoi`. Bytes that are not a whole character are U+FFFD.
    """
    texts = tokenizer.decode_batch([[id] for id in range(vocabulary_size(tokenizer))], skip_special_tokens=False)
    ids = {text: id for id, text in reversed(list(enumerate(texts))) if "\ufffd" not in text}
    meta = {"vocab_size": len(texts), "itos": dict(enumerate(texts)), "stoi": ids}
    return shards.write_file(output, META, pickle.dumps(meta, protocol=4))


def documents_file(name: str) -> str:
    """Return the name of the table of a token shard's documents."""
    return f"{name.rpartition('.')[0]}-documents.parquet"


def _read_shard_documents(shard: TokenShard, runs: Sequence[str], shuffled: bool) -> pa.Table:
    """Return the rows of all documents in the shard's bins, in order, each with the number of its run."""

    def read(number: int) -> pa.Table:
        rows = read_documents(runs[number], SPLITS.index(shard.split), shard.low, shard.high)
        return rows.append_column("run", pa.array(np.full(rows.num_rows, number, np.int64)))

    documents = pa.concat_tables(_map_runs(read, runs))
    # Documents of equal ids have equal orders; if all of this is equal, so is all that is written.
    names = ("order", "content", "id", "url")
    return documents.sort_by([(name, "ascending") for name in names]) if shuffled else documents


def _cut_pieces(tokens: npt.NDArray[np.int64], shard: TokenShard) -> _Pieces:
    """Cut the stream of documents, given the tokens of each, to the shard."""
    ends = np.cumsum(tokens) - shard.skip
    starts = ends - tokens
    first, last = np.maximum(starts, 0), np.minimum(ends, shard.tokens)
    rows = np.flatnonzero(first < last)
    counts = (last - first)[rows]
    if int(counts.sum()) != shard.tokens:
        raise DamagedShardError(
            f"{shard.name}: expected {shard.tokens} tokens in its runs, found {int(counts.sum())}; "
            "delete the output folder and re-run `webtext tokenize`"
        )
    return _Pieces(rows, targets=first[rows], counts=counts, offsets=(first - starts)[rows])


def _merge_tokens(
    shard: TokenShard, runs: Sequence[str], documents: pa.Table, pieces: _Pieces, form: TokenFormat
) -> npt.NDArray[np.unsignedinteger]:
    tokens = np.empty(shard.tokens, form.little_endian)
    numbers = documents.column("run").to_numpy()[pieces.rows]
    sources = documents.column("start").to_numpy()[pieces.rows] + pieces.offsets

    order = np.lexsort((sources, numbers))
    bounds = np.searchsorted(numbers[order], np.arange(len(runs) + 1))

    def copy(number: int) -> None:
        if len(chosen := order[bounds[number] : bounds[number + 1]]):
            parts = {"targets": pieces.targets[chosen], "counts": pieces.counts[chosen]}
            copy_tokens(runs[number], sources[chosen], **parts, out=tokens)

    _map_runs(copy, runs)
    return tokens


def _map_runs(function: Callable[[int], Result], runs: Sequence[str]) -> list[Result]:
    return storage.map_files(function, range(len(runs)), folder=runs[0] if runs else "")


def _whole_documents(pieces: _Pieces, lengths: npt.NDArray[np.int64]) -> _Pieces:
    """Return the documents that start in a shard, with all their tokens: the next ones are in the same file."""
    starts = pieces.offsets == 0
    rows = pieces.rows[starts]
    return _Pieces(rows, targets=pieces.targets[starts], counts=lengths[rows], offsets=pieces.offsets[starts])


def _write_documents(writer: shards.ShardWriter, documents: pa.Table, pieces: _Pieces, start: int) -> None:
    """Write the rows of a shard's documents; the shard starts at token `start` of the file."""
    kept = documents.take(pa.array(pieces.rows))
    columns = [kept.column("id"), kept.column("url"), start + pieces.targets, pieces.counts, pieces.offsets]
    table = pa.table(columns, names=TOKEN_DOCUMENTS_SCHEMA.names)
    for batch in table.to_batches(max_chunksize=_GROUP_ROWS):
        for part in shards.split_by_bytes(batch, _GROUP_BYTES):
            # A copy, since only the first 2 GiB of a column can be cast.
            copied = part.take(pa.array(np.arange(part.num_rows)))
            writer.write_batch(copied.cast(TOKEN_DOCUMENTS_SCHEMA))
