"""A sample of texts from every shard, chosen by hash, to check the written files and to group on the report card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.engine.manifest import FileEntry, has_manifest
from pipelines.records import inputs, shards
from pipelines.records.document_split import hash_key

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("group", pa.string()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("held_out", pa.bool_(), nullable=False),
    ]
)

# Only the beginning of a long document is sampled, so that a sample has many documents.
_MAX_CHARACTERS = 16_384
_COMPARED_TEXTS = 64
_COMPARED_CHARACTERS = 2048

_Row = tuple[int, str, str | None, str, bool]


class SampleWriter:
    """Keeps the texts with the lowest hashes, up to about `max_bytes` bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rows: list[_Row] = []
        self._bytes = 0
        self._below = 2**64

    def add(
        self, batch: pa.RecordBatch, keys: Sequence[str], groups: Sequence[str | None], held_out: Sequence[bool]
    ) -> None:
        """Sample a batch of documents by the hash of their `keys`."""
        ids, texts = batch.column("id"), batch.column("text")
        for row, key in enumerate(keys):
            hash = hash_key(key, "sample")
            if hash < self._below:
                self._add((hash, ids[row].as_py(), groups[row], texts[row].as_py()[:_MAX_CHARACTERS], held_out[row]))

    def add_sample(self, rows: pa.RecordBatch) -> None:
        """Sample the rows of another sample, whose keys are not known, by the hash of their id and text."""
        for row in rows.to_pylist():
            hash = hash_key(f"{row['id']}\n{row['text']}", "sample")
            if hash < self._below:
                self._add((hash, row["id"], row["group"], row["text"], row["held_out"]))

    def write(self, output: str, index: int) -> FileEntry:
        """Write the sample as `sample-N.parquet`, in the order of the hashes."""
        self._shrink()
        rows = [dict(zip(SAMPLE_SCHEMA.names, row[1:], strict=True)) for row in self._rows]
        with shards.write_shard(output, shards.shard_name("sample", index), SAMPLE_SCHEMA) as written:
            written.writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=SAMPLE_SCHEMA))
        return written.entry

    def _add(self, row: _Row) -> None:
        self._rows.append(row)
        self._bytes += len(row[3].encode())
        if self._bytes > 2 * self._max_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Drop the highest hashes until the rest is within the limit; the first text always stays."""
        self._rows.sort(key=lambda row: row[:2])
        self._bytes = 0
        for number, row in enumerate(self._rows):
            size_bytes = len(row[3].encode())
            if number and self._bytes + size_bytes > self._max_bytes:
                self._below = row[0]
                del self._rows[number:]
                return
            self._bytes += size_bytes


def sample_files(folders: Sequence[str]) -> list[inputs.InputFile]:
    """Return the samples in folders of this stage."""
    opened = [inputs.open_stage(path, ("train-bpe",)) for path in folders if has_manifest(path)]
    return [file for folder in opened for file in folder.files("sample-")]


def join_samples(files: Sequence[inputs.InputFile], output: str, max_bytes: int) -> FileEntry:
    """Write one sample from several; each text has the same chance, whatever the order of the files."""
    writer = SampleWriter(max_bytes)
    for file in files:
        file.verify()
        for batch in shards.read_batches(file.path):
            writer.add_sample(batch)
    return writer.write(output, 0)


def read_sample(paths: Sequence[str]) -> pa.Table:
    """Return the rows of samples."""
    return pa.Table.from_batches([batch for path in paths for batch in shards.read_batches(path)], SAMPLE_SCHEMA)


def texts_to_compare(sample: pa.Table, words: Iterator[pa.RecordBatch]) -> list[str]:
    """Return the texts that files are checked with: the beginnings of some, or words if the sample is empty."""
    step = max(1, len(sample) // _COMPARED_TEXTS)
    texts = sample.column("text").to_pylist()[::step][:_COMPARED_TEXTS]
    if texts:
        return [text[:_COMPARED_CHARACTERS] for text in texts]
    first = next(words, None)
    return ["".join(first.column("word").to_pylist())[:_COMPARED_CHARACTERS]] if first is not None else []
