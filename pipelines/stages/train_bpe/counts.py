"""Counts of words: files of them taken up, added up by bucket, and laid out for the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.word_counts import bucket_of_words, count_words
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.buckets import BucketWriter, bucket_part, write_buckets
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays

# How often a word stands in the documents that are kept, and in those that are held out.
COUNTS_SCHEMA = pa.schema(
    [
        pa.field("word", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("held_out", pa.int64(), nullable=False),
    ]
)
_ROWS_WRITTEN = 8192
_BYTES_WRITTEN = 32 << 20
# Arrow groups by at most 2 GiB of distinct words at a time.
_BYTES_GROUPED = 1 << 30
# Words are short as a rule, and each batch has a price of its own.
_ROWS_READ = 65_536
_BYTES_READ = 32 << 20
# Counts stand for less text than this, an exabyte: no sum over words, of whatever they hold, then goes past 64 bits,
# nor does the power of ten above it.
_TOO_MUCH_TEXT_BYTES = 10**18


@dataclasses.dataclass(frozen=True)
class ReadTask:
    """A file of counts to take up, and the work file to cut it into buckets in."""

    index: int
    file: inputs.InputFile
    buckets: int
    output: str
    work_file: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"counts-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class AddTask:
    """One bucket of all work files to add up, of so many."""

    bucket: int
    buckets: int
    work_files: tuple[str, ...]
    output: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"bucket-{self.bucket:05d}"


class Words(NamedTuple):
    """Words for the trainer: the symbols of word i are `symbols[starts[i]:starts[i + 1]]`."""

    symbols: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def write_bucketed(writer: BucketWriter, counts: pa.RecordBatch, buckets: int) -> None:
    """Add words and their counts to a work file, each to the bucket of its hash."""
    writer.write(counts, _buckets_of(counts, buckets))


def _buckets_of(counts: pa.RecordBatch, buckets: int) -> npt.NDArray[np.int32]:
    if buckets == 1:
        return np.zeros(counts.num_rows, np.int32)
    return bucket_of_words(*text_arrays(counts.column("word")), buckets)


def read_counts(task: ReadTask) -> TaskResult:
    """Take up a file of counts; raise InputError where it is none, or has a word that GPT-2's split would not leave."""
    task.file.verify()
    with write_buckets(storage.join(task.output, task.work_file), COUNTS_SCHEMA) as written:
        words = text_bytes = 0
        for batch in _batches(task.file.path):
            if batch.num_rows:
                counts = _checked(batch, task.file.path)
                text_bytes += _text_bytes(counts)
                require_sums(text_bytes, task.file.path)
                write_bucketed(written.writer, counts, task.buckets)
                words += batch.num_rows
                progress.advance(batch.num_rows)
    entry = FileEntry(task.work_file, written.size_bytes, written.sha256)
    return TaskResult(records_in=words, records_out=words, counts={"text_bytes": text_bytes}, files=(entry,))


def measure(path: str) -> tuple[int, int]:
    """Return the rows of a file of counts, and about how many bytes its words have, by its footer."""
    with storage.open_read(path) as stream:
        file = shards.open_parquet(stream, path)
        shards.require_columns(path, file.schema_arrow.names, ["word", "count"])
        rows = int(file.metadata.num_rows)
        return rows, max(rows, shards.estimate_text_bytes(file.metadata, "word"))


def require_sums(text_bytes: int, path: str) -> None:
    """Raise InputError for counts that stand for more text than can be added up."""
    if text_bytes >= _TOO_MUCH_TEXT_BYTES:
        raise InputError(
            f"{path}: its counts, with those of the files before it, stand for an exabyte of text or more, "
            "which cannot be added up in 64 bits; are they counts?"
        )


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a file that hold counts, in batches that stay small where the words are long."""
    words, word_bytes = measure(path)
    with storage.open_read(path) as stream:
        present = shards.open_parquet(stream, path).schema_arrow.names
    columns = [name for name in COUNTS_SCHEMA.names if name in present]
    rows = max(1, min(_ROWS_READ, _BYTES_READ * words // max(1, word_bytes)))
    yield from shards.read_batches(path, columns, rows=rows)


def _text_bytes(counts: pa.RecordBatch) -> int:
    """Return the bytes of text that counts stand for; only about where that is too much."""
    lengths = pc.binary_length(counts.column("word")).to_numpy().astype(np.int64)
    times = counts.column("count").to_numpy() + counts.column("held_out").to_numpy()
    about = float(lengths.astype(np.float64) @ times.astype(np.float64))
    return int(about) if about >= 2 * _TOO_MUCH_TEXT_BYTES else int(lengths @ times)


def _checked(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """Return a batch of a file of counts in our columns."""
    held_out = batch.column("held_out") if "held_out" in batch.schema.names else pa.array([0] * batch.num_rows)
    try:
        texts = batch.column("word").cast(pa.binary())
        words = texts.cast(pa.string())  # which sees whether it is UTF-8
        kept, held_out = batch.column("count").cast(pa.int64()), held_out.cast(pa.int64())
        times = pc.add_checked(kept, held_out)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(
            f"{path}: word must be text, and count a whole number of at most 64 bits ({reason})"
        ) from error
    columns = [words, kept, held_out]
    if any(column.null_count for column in columns):
        raise InputError(f"{path}: has rows without a word or a count")
    least = min(pc.min(kept).as_py(), pc.min(held_out).as_py())
    if least < 0 or pc.min(times).as_py() < 1:
        raise InputError(f"{path}: has a word that occurs fewer than one time")
    _require_words(texts.to_pylist(), path)
    return pa.RecordBatch.from_arrays(columns, schema=COUNTS_SCHEMA)


def _require_words(words: list[bytes], path: str) -> None:
    """Raise InputError for a text that is more than one word: merges could then cross words."""
    if b"" not in words and sum(count for _, count in count_words(words)) == len(words):
        return
    wrong = next(word for word in words if [count for _, count in count_words([word])] != [1])
    raise InputError(
        f"{path}: {wrong.decode()!r} is not one word of GPT-2's split; count with `webtext train-bpe --count-only`, "
        "or split words as GPT-2 does"
    )


def add_up(task: AddTask) -> TaskResult:
    """Write the counts of one bucket, in the order of the words."""
    parts = [bucket_part(storage.join(task.output, name), COUNTS_SCHEMA, task.bucket) for name in task.work_files]
    batches = [batch for part in parts for batch in part.batches()]
    groups = 1 + sum(batch.nbytes for batch in batches) // _BYTES_GROUPED
    grouped = (_of_group(batches, task.buckets, group, groups) if groups > 1 else batches for group in range(groups))
    counts = pa.concat_tables([_added(each) for each in grouped]).sort_by("word")
    lengths = pc.binary_length(counts["word"])
    name = shards.shard_name("counts", task.bucket)
    with shards.write_shard(task.output, name, COUNTS_SCHEMA, repetitive=[]) as written:
        for part in _slices(counts.combine_chunks(), lengths.to_numpy()):
            for batch in part.cast(COUNTS_SCHEMA).to_batches():
                written.writer.write_batch(batch)
    progress.advance(counts.num_rows)
    repeated = pc.greater(pc.add(counts["count"], counts["held_out"]), 1)
    return TaskResult(
        counts={
            "words": counts.num_rows,
            "word_bytes": pc.sum(lengths).as_py() or 0,
            "repeated_words": pc.sum(repeated).as_py() or 0,
            "repeated_word_bytes": pc.sum(pc.if_else(repeated, lengths, 0)).as_py() or 0,
        },
        files=(written.entry,),
    )


def _of_group(batches: Sequence[pa.RecordBatch], buckets: int, group: int, groups: int) -> list[pa.RecordBatch]:
    """Return the rows of one group of a bucket: the hash that chose the bucket chooses the group as well."""
    places = (_buckets_of(batch, buckets * groups) // buckets for batch in batches)
    return [batch.filter(pa.array(place == group)) for batch, place in zip(batches, places, strict=True)]


def _added(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    # Arrow's strings end at 2 GiB in all, its large ones do not.
    wide = COUNTS_SCHEMA.set(0, pa.field("word", pa.large_string(), nullable=False))
    rows = pa.Table.from_batches(batches, COUNTS_SCHEMA).cast(wide)
    added = rows.group_by("word", use_threads=False).aggregate([("count", "sum"), ("held_out", "sum")])
    return pa.table([added["word"], added["count_sum"], added["held_out_sum"]], schema=wide)


def _slices(counts: pa.Table, lengths: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """Cut a table into parts of which each can be one batch; `lengths` are those of its words."""
    ends = np.cumsum(lengths)
    first = 0
    while first < len(ends):
        fitting = int(np.searchsorted(ends, ends[first] - lengths[first] + _BYTES_WRITTEN, side="right"))
        after = min(first + _ROWS_WRITTEN, max(first + 1, fitting))
        # A copy, not a slice: Arrow refuses to narrow a part whose offsets go on from 2 GiB.
        yield counts.take(pa.array(np.arange(first, after)))
        first = after


def counted_words(folder: str, files: Sequence[FileEntry], train_on: str, least: int) -> Iterator[pa.RecordBatch]:
    """Yield the words that are trained on, with `count` as they are counted for that, and `held_out`.

    Words that are only in held-out documents are yielded too, with a count of 0, where those are not trained on; and so
    are those that occur fewer than `least` times.
    """
    for file in files:
        for batch in _batches(storage.join(folder, file.name)):
            kept, held_out = batch.column("count"), batch.column("held_out")
            counts = pc.add(kept, held_out) if train_on == "all" else kept
            if least > 1:
                counts = pc.if_else(pc.less(counts, least), 0, counts)
            yield pa.RecordBatch.from_arrays([batch.column("word"), counts, held_out], schema=COUNTS_SCHEMA)


def words_to_train_on(batches: Iterator[pa.RecordBatch], words: int, word_bytes: int) -> Words:
    """Lay out words for the trainer: `words` and `word_bytes` are how many there are at most."""
    symbol_of_byte = np.empty(256, np.uint8)
    symbol_of_byte[list(byte_characters())] = np.arange(256)
    symbols, starts = np.empty(word_bytes, np.uint8), np.zeros(words + 1, np.int64)
    counts = np.empty(words, np.int64)
    size = end = 0
    for batch in batches:
        kept = batch.filter(pc.greater(batch.column("count"), 0))
        text, bounds = text_arrays(kept.column("word"))
        text_bytes = int(bounds[-1] - bounds[0])
        symbols[end : end + text_bytes] = symbol_of_byte[text[bounds[0] : bounds[-1]]]
        starts[size + 1 : size + 1 + kept.num_rows] = end + (bounds[1:].astype(np.int64) - bounds[0])
        counts[size : size + kept.num_rows] = kept.column("count").to_numpy()
        size += kept.num_rows
        end += text_bytes
    return Words(symbols[:end], starts[: size + 1], counts[:size])
