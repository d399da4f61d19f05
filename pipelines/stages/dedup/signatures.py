"""First phase: for each document its text hash, its rank among duplicates, and the keys of its signature's bands.

From here on a document is a number: its place in the whole input. Ids do not serve, for foreign inputs repeat them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.minhash.signatures import band_keys, shingle_hashes, signature_of, text_hash
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.run import TaskResult

Numbers = npt.NDArray[np.int64]

_RANK_FIELDS = (("score", pa.int64()), ("created_utc", pa.int64()))


@dataclasses.dataclass(frozen=True)
class Shingling:
    """How texts become signatures, and signatures bands."""

    ngram: int
    num_perm: int
    seed: int
    bands: int
    rows: int


@dataclasses.dataclass(frozen=True)
class SignTask:
    """Make the signatures of one shard of documents."""

    shard: inputs.DocumentShard
    shingling: Shingling
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class SignedShard:
    """A file of signatures; `start` is the number of its first document, `rows` how many it holds."""

    path: str
    start: int
    rows: int


def band_name(band: int) -> str:
    """Return the name of the column that holds a band's keys."""
    return f"band_{band:03d}"


def signature_schema(bands: int) -> pa.Schema:
    """Return the schema of signature files; a document without words has no band keys."""
    hashes = [pa.field(name, pa.uint64(), nullable=False) for name in ("text_hash", "text_hash_2")]
    keys = [pa.field(band_name(band), pa.uint64()) for band in range(bands)]
    rank = [pa.field(name, kind) for name, kind in _RANK_FIELDS]
    return pa.schema([pa.field("id", pa.string(), nullable=False), *rank, *hashes, *keys])


def sign_shard(task: SignTask) -> TaskResult:
    """Write the signatures of one shard of documents."""
    schema = signature_schema(task.shingling.bands)
    name = storage.join(task.work, shards.shard_name("signatures", task.shard.index))
    with shards.write_shard(task.output, name, schema) as written:
        for batch in inputs.read_documents(task.shard, Drops()):
            if batch.num_rows:
                written.writer.write_batch(_signed(batch, task.shingling, schema))
            progress.advance(batch.num_rows)
    return TaskResult(files=(written.entry,))


def _signed(batch: pa.RecordBatch, shingling: Shingling, schema: pa.Schema) -> pa.RecordBatch:
    texts = batch.column("text").to_pylist()
    hashes = np.frombuffer(b"".join(map(text_hash, texts)), dtype="<u8").reshape(-1, 2)
    signatures = np.zeros((len(texts), shingling.num_perm), dtype=np.uint32)
    without_words = np.zeros(len(texts), dtype=bool)
    for row, text in enumerate(texts):
        shingles = shingle_hashes(text, shingling.ngram)
        without_words[row] = not len(shingles)
        signatures[row] = signature_of(shingles, shingling.num_perm, shingling.seed)
    keys = band_keys(signatures, shingling.bands, shingling.rows)
    columns = [batch.column("id"), *(_rank(batch, name, kind) for name, kind in _RANK_FIELDS)]
    columns += [pa.array(hashes[:, column], pa.uint64()) for column in range(2)]
    columns += [pa.array(keys[:, band], pa.uint64(), mask=without_words) for band in range(shingling.bands)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _rank(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column that ranks duplicates as whole numbers; null where the input has none, or not of numbers."""
    given = batch.schema.field(name).type if name in batch.schema.names else pa.null()
    if pa.types.is_integer(given):
        return batch.column(name).cast(kind, safe=False)
    if pa.types.is_floating(given):  # what pandas makes of whole numbers where one is missing
        column = batch.column(name)
        return pc.if_else(pc.is_finite(column), column, None).cast(kind, safe=False)
    return pa.nulls(batch.num_rows, kind)


def signed_shards(paths: Sequence[str]) -> tuple[SignedShard, ...]:
    """Return the signature files, in order, with the number of the first document of each."""
    found = []
    start = 0
    for path in paths:
        with storage.open_read(path) as stream:
            rows = shards.open_parquet(stream, path).metadata.num_rows
        found.append(SignedShard(path, start, rows))
        start += rows
    return tuple(found)


def read_columns(
    signed: Sequence[SignedShard], names: list[str]
) -> Iterator[tuple[Numbers, list[npt.NDArray[np.uint64]]]]:
    """Yield document numbers with columns of hashes, batch by batch; documents without band keys are left out."""
    for shard in signed:
        start = shard.start
        for batch in shards.read_batches(shard.path, names):
            numbers = np.arange(start, start + batch.num_rows, dtype=np.int64)
            start += batch.num_rows
            whole = batch.column(names[0]).is_valid().to_numpy(zero_copy_only=False)
            columns = [batch.column(name).fill_null(0).to_numpy()[whole] for name in names]
            yield numbers[whole], columns
