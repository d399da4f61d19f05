"""Phase 1: the text hash, the rank among duplicates, and the band keys of every document.

In all later phases a document is a number: its position in the whole input. Ids do not serve, because foreign inputs
may repeat them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.minhash.signatures import band_keys, choose_bands, shingle_hashes, signature_of, text_hash
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.journal import WORK
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.config import DedupConfig

Numbers = npt.NDArray[np.int64]

RANK_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("score", pa.int64()),
        pa.field("created_utc", pa.int64()),
    ]
)


@dataclasses.dataclass(frozen=True)
class SignedShard:
    """A shard of documents with its file of signatures; `start` is the number of its first document."""

    documents: inputs.DocumentShard
    path: str
    start: int
    rows: int

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.documents.name


def work_name(noun: str, index: int, suffix: str = "parquet") -> str:
    """Return the name of the work file of a shard."""
    return storage.join(WORK, shards.shard_name(noun, index, suffix))


def band_name(band: int) -> str:
    """Return the name of the column that holds a band's keys."""
    return f"band_{band:03d}"


def signature_schema(bands: int) -> pa.Schema:
    """Return the schema of signature files; a document without words has no band keys."""
    hashes = [pa.field(name, pa.uint64(), nullable=False) for name in ("text_hash", "text_hash_2")]
    keys = [pa.field(band_name(band), pa.uint64()) for band in range(bands)]
    return pa.schema([*RANK_SCHEMA, *hashes, *keys])


def sign_shard(shard: inputs.DocumentShard, context: tuple[DedupConfig, str]) -> TaskResult:
    """Write the signatures of a shard of documents."""
    config, output = context
    bands, rows = choose_bands(config.num_perm, config.threshold)
    schema = signature_schema(bands)
    with shards.write_shard(output, work_name("signatures", shard.index), schema) as signatures:
        for batch in inputs.read_documents(shard, Drops()):
            if batch.num_rows:
                columns = _signature_columns(batch, config, bands, rows)
                signatures.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            progress.advance(batch.num_rows)
    return TaskResult(files=(signatures.entry,))


def _signature_columns(batch: pa.RecordBatch, config: DedupConfig, bands: int, rows: int) -> list[pa.Array]:
    texts = batch.column("text").to_pylist()
    hashes = np.frombuffer(b"".join(map(text_hash, texts)), dtype="<u8").reshape(-1, 2)
    signatures = np.zeros((len(texts), config.num_perm), dtype=np.uint32)
    without_words = np.zeros(len(texts), dtype=bool)
    for row, text in enumerate(texts):
        shingles = shingle_hashes(text, config.ngram)
        without_words[row] = not len(shingles)
        signatures[row] = signature_of(shingles, config.num_perm, config.seed)
    keys = band_keys(signatures, bands, rows)
    return [
        batch.column("id"),
        *(_rank_column(batch, name) for name in RANK_SCHEMA.names[1:]),
        *(pa.array(hashes[:, column], pa.uint64()) for column in range(2)),
        *(pa.array(keys[:, band], pa.uint64(), mask=without_words) for band in range(bands)),
    ]


def _rank_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column that ranks duplicates as integers; nulls where the input has no such column of numbers."""
    kind = batch.schema.field(name).type if name in batch.schema.names else pa.null()
    if pa.types.is_integer(kind):
        return batch.column(name).cast(pa.int64(), safe=False)
    if pa.types.is_floating(kind):  # pandas stores integers with missing values as floats
        column = batch.column(name)
        return pc.if_else(pc.is_finite(column), column, None).cast(pa.int64(), safe=False)
    return pa.nulls(batch.num_rows, pa.int64())


def open_signatures(source: Sequence[inputs.DocumentShard], output: str) -> tuple[SignedShard, ...]:
    """Return the shards with their signature files, and number their documents."""
    signed = []
    start = 0
    for shard in source:
        path = storage.join(output, work_name("signatures", shard.index))
        rows = count_rows(path)
        signed.append(SignedShard(shard, path, start, rows))
        start += rows
    return tuple(signed)


def count_rows(path: str) -> int:
    """Return the number of rows of a Parquet file, from its footer."""
    with storage.open_read(path) as stream:
        rows: int = shards.open_parquet(stream, path).metadata.num_rows
    return rows


def read_arrays(paths: Sequence[str], schema: pa.Schema) -> list[npt.NDArray[np.int64]]:
    """Return the columns of files of integers, one after the other."""
    batches = [batch for path in paths for batch in shards.read_batches(path)]
    table = pa.Table.from_batches(batches, schema)
    return [column.to_numpy() for column in table.columns]


def read_keys(
    signed: Sequence[SignedShard], names: list[str]
) -> Iterator[tuple[Numbers, list[npt.NDArray[np.uint64]]]]:
    """Yield document numbers with columns of hashes, batch by batch; documents without band keys are skipped."""
    for shard in signed:
        start = shard.start
        for batch in shards.read_batches(shard.path, names):
            numbers = np.arange(start, start + batch.num_rows, dtype=np.int64)
            start += batch.num_rows
            is_valid = batch.column(names[0]).is_valid().to_numpy(zero_copy_only=False)
            yield numbers[is_valid], [batch.column(name).fill_null(0).to_numpy()[is_valid] for name in names]
