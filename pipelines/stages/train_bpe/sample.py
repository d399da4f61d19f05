"""A few texts of every shard, chosen by hash: what the finished files are compared on, and the report card's groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.core import inputs, shards
from pipelines.core.document_split import hash_key
from pipelines.core.manifest import FileEntry, has_manifest

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("group", pa.string()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("held_out", pa.bool_(), nullable=False),
    ]
)

# Of a long document only its beginning is taken, so that a sample has many.
_MOST_CHARACTERS = 16_384
_COMPARED_TEXTS = 64
_COMPARED_CHARACTERS = 2048

_Row = tuple[int, str, str | None, str, bool]


class SampleWriter:
    """Keeps the texts of the lowest hashes, up to about so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rows: list[_Row] = []
        self._bytes = 0
        self._below = 2**64

    def add(
        self, batch: pa.RecordBatch, keys: Sequence[str], groups: Sequence[str | None], held_out: Sequence[bool]
    ) -> None:
        """Look at a batch of documents: `keys` decide, `groups` and `held_out` are noted."""
        ids, texts = batch.column("id"), batch.column("text")
        for row, key in enumerate(keys):
            place = hash_key(key, "sample")
            if place < self._below:
                text = texts[row].as_py()[:_MOST_CHARACTERS]
                self._add((place, ids[row].as_py(), groups[row], text, held_out[row]))

    def add_sample(self, rows: pa.RecordBatch) -> None:
        """Look at the rows of another sample, whose keys are not known: by a hash of their id and text."""
        for row in rows.to_pylist():
            place = hash_key(f"{row['id']}\n{row['text']}", "sample")
            if place < self._below:
                self._add((place, row["id"], row["group"], row["text"], row["held_out"]))

    def write(self, output: str, index: int) -> FileEntry:
        """Write the sample as `sample-N.parquet`, in the order of the hashes."""
        self._thin_out()
        rows = [dict(zip(SAMPLE_SCHEMA.names, row[1:], strict=True)) for row in self._rows]
        with shards.write_shard(output, shards.shard_name("sample", index), SAMPLE_SCHEMA) as written:
            written.writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=SAMPLE_SCHEMA))
        return written.entry

    def _add(self, row: _Row) -> None:
        self._rows.append(row)
        self._bytes += len(row[3].encode())
        if self._bytes > 2 * self._most_bytes:
            self._thin_out()

    def _thin_out(self) -> None:
        """Let go of the highest hashes, so that what is left is within the limit; the first text always stays."""
        self._rows.sort(key=lambda row: row[:2])
        kept: list[_Row] = []
        self._bytes = 0
        for row in self._rows:
            size_bytes = len(row[3].encode())
            if kept and self._bytes + size_bytes > self._most_bytes:
                self._below = row[0]
                break
            kept.append(row)
            self._bytes += size_bytes
        self._rows = kept


def sample_files(folders: Sequence[str]) -> list[inputs.InputFile]:
    """Return the samples that lie in folders of this stage."""
    found = [inputs.open_stage(path, ("train-bpe",)).files("sample-") for path in folders if has_manifest(path)]
    return [file for files in found for file in files]


def join_samples(files: Sequence[inputs.InputFile], output: str, most_bytes: int) -> FileEntry:
    """Write one sample of several, in which each text has the same chance, whichever file comes first."""
    writer = SampleWriter(most_bytes)
    for file in files:
        file.verify()
        for batch in shards.read_batches(file.path):
            writer.add_sample(batch)
    return writer.write(output, 0)


def read_sample(paths: Sequence[str]) -> pa.Table:
    """Return the rows of samples."""
    return pa.Table.from_batches([batch for path in paths for batch in shards.read_batches(path)], SAMPLE_SCHEMA)


def texts_to_compare(sample: pa.Table, words: Iterator[pa.RecordBatch]) -> list[str]:
    """Return the texts that files are compared on: the beginnings of some, or, where there is none, words in a row."""
    step = max(1, len(sample) // _COMPARED_TEXTS)
    texts = sample.column("text").to_pylist()[::step][:_COMPARED_TEXTS]
    if texts:
        return [text[:_COMPARED_CHARACTERS] for text in texts]
    first = next(words, None)
    return ["".join(first.column("word").to_pylist())[:_COMPARED_CHARACTERS]] if first is not None else []
