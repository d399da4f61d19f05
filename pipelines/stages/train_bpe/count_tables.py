"""Tables of word counts: given ones are checked, those of all tasks are added up by bucket, and the sums are read.

A work file has the counts of one shard of documents, or of one given file, in buckets by a hash of the word. So each
bucket of all work files can be added up separately, whatever the number of words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.word_table import bucket_of_words, count_words
from pipelines.algorithms.columns import text_arrays
from pipelines.engine.journal import WORK, is_unfinished
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.records import input_paths, inputs, shards
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.schemas import make_schema
from pipelines.records.text_columns import slices_within
from pipelines.stages.train_bpe.sample import join_samples

# How often a word occurs in the documents that are kept, and in those that are held out.
COUNTS_SCHEMA = make_schema(word="string", count="int64", held_out="int64")
# How much is kept in memory or in a file at a time; the counts are the same for all values. Bytes of the words of an
# Arrow array, and of those that Arrow groups at a time, at most 2 GiB.
BATCH_BYTES, _GROUP_BYTES = 32 << 20, 1 << 30
# A bucket has the words of this much input on disk, up to 1 TB, or this many of counts, which take 400 MB to add up.
BUCKET_BYTES, _BUCKET_WORDS, MAX_BUCKETS = 256 << 20, 2_000_000, 1 << 12
# Sampled texts of all shards together.
SAMPLE_TEXTS = 1024
_ROWS_WRITTEN = 8192
# Words are usually short, and each batch has a fixed cost.
_ROWS_READ = 65_536
# An exabyte of text: below it no sum over words exceeds 64 bits, whatever it adds up.
_MAX_TEXT_BYTES = 10**18


class Words(NamedTuple):
    """Words for the trainer: the symbols of word i are `symbols[starts[i]:starts[i + 1]]`."""

    symbols: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class CountedWords:
    """The counts of all words, in `paths`, and their number; `repeated_words` are those that occur at least twice.

    `samples` are the files of sampled texts.
    """

    paths: tuple[str, ...]
    distinct_words: int
    distinct_word_bytes: int
    repeated_words: int
    repeated_word_bytes: int
    samples: tuple[str, ...]

    def read(self, train_on: str, min_count: int = 1) -> Iterator[pa.RecordBatch]:
        """Yield words with `count` in the documents trained on, and `held_out`.

        Words that are not trained on have a count of 0: those that occur fewer than `min_count` times, and those that
        occur only in held-out documents unless these are trained on.
        """
        for path in self.paths:
            for batch in _read_batches(path):
                kept, held_out = batch.column("count"), batch.column("held_out")
                counts = pc.add(kept, held_out) if train_on == "all" else kept
                if min_count > 1:
                    counts = pc.if_else(pc.less(counts, min_count), 0, counts)
                yield pa.RecordBatch.from_arrays([batch.column("word"), counts, held_out], schema=COUNTS_SCHEMA)

    def arrange(self, train_on: str, min_count: int) -> Words:
        """Return the words that are trained on as the trainer takes them."""
        symbol_of_byte = np.empty(256, np.uint8)
        symbol_of_byte[list(byte_characters())] = np.arange(256)
        symbols, starts = np.empty(self.distinct_word_bytes, np.uint8), np.zeros(self.distinct_words + 1, np.int64)
        counts = np.empty(self.distinct_words, np.int64)
        size = end = 0
        for batch in self.read(train_on, min_count):
            kept = batch.filter(pc.greater(batch.column("count"), 0))
            text, bounds = text_arrays(kept.column("word"))
            text_bytes = int(bounds[-1] - bounds[0])
            symbols[end : end + text_bytes] = symbol_of_byte[text[bounds[0] : bounds[-1]]]
            starts[size + 1 : size + 1 + kept.num_rows] = end + (bounds[1:].astype(np.int64) - bounds[0])
            counts[size : size + kept.num_rows] = kept.column("count").to_numpy()
            size += kept.num_rows
            end += text_bytes
        return Words(symbols[:end], starts[: size + 1], counts[:size])


def work_file(index: int) -> str:
    """Return the name of the work file with the counts of one shard of documents, or of one given file."""
    return storage.join(WORK, f"words-{index:05d}.buckets")


def buckets_of(counts: pa.RecordBatch, buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each word, by its hash."""
    if buckets == 1:
        return np.zeros(counts.num_rows, np.int32)
    return bucket_of_words(*text_arrays(counts.column("word")), buckets)


@dataclasses.dataclass(frozen=True)
class _BucketContext:
    """What all given files or all buckets share: the number of buckets, and the work files with the counts."""

    output: str
    buckets: int
    work_files: tuple[str, ...] = ()


def add_up(run: StageRun, buckets: int, work_files: Sequence[str], samples: Sequence[str]) -> CountedWords:
    """Add up the counts in work files, one task per bucket; `samples` are names of files."""
    context = _BucketContext(run.output, buckets, tuple(work_files))
    entries = run.map(
        add_up_bucket,
        range(buckets),
        context,
        name=lambda bucket: f"bucket-{bucket:05d}",
        phase="add",
        unit="words",
        serial=buckets == 1,
    )
    names = ("distinct_words", "distinct_word_bytes", "repeated_words", "repeated_word_bytes")
    return CountedWords(
        paths=tuple(storage.join(run.output, entry.files[0].name) for entry in entries),
        **{name: int(sum(entry.counts[name] for entry in entries)) for name in names},
        samples=tuple(storage.join(run.output, name) for name in samples),
    )


def add_up_bucket(bucket: int, context: _BucketContext) -> TaskResult:
    """Write the counts of one bucket, sorted by word."""
    paths = [storage.join(context.output, name) for name in context.work_files]
    batches = read_bucket(paths, COUNTS_SCHEMA, bucket)
    sums = [_sum_by_word(group) for group in _groups(batches, context)]
    counts = pa.concat_tables(sums).sort_by("word").combine_chunks()
    lengths = pc.binary_length(counts["word"])
    with shards.write_shard(
        context.output, shards.shard_name("counts", bucket), COUNTS_SCHEMA, repetitive=[]
    ) as written:
        starts = np.concatenate([[0], np.cumsum(lengths.to_numpy())])
        for first, after in slices_within(starts, BATCH_BYTES, _ROWS_WRITTEN):
            # A copy, not a slice: Arrow cannot narrow a part whose offsets exceed 2 GiB.
            part = counts.take(pa.array(np.arange(first, after)))
            for batch in part.cast(COUNTS_SCHEMA).to_batches():
                written.write_batch(batch)
    progress.advance(counts.num_rows)
    repeated = pc.greater(pc.add(counts["count"], counts["held_out"]), 1)
    return TaskResult(
        counts={
            "distinct_words": counts.num_rows,
            "distinct_word_bytes": pc.sum(lengths).as_py() or 0,
            "repeated_words": pc.sum(repeated).as_py() or 0,
            "repeated_word_bytes": pc.sum(pc.if_else(repeated, lengths, 0)).as_py() or 0,
        },
        files=(written.entry,),
    )


def _groups(batches: list[pa.RecordBatch], context: _BucketContext) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of a bucket in groups that Arrow can add up; all rows of a word are in one group."""
    groups = 1 + sum(batch.nbytes for batch in batches) // _GROUP_BYTES
    if groups == 1:
        yield batches
        return
    # The hash that selects the bucket selects the group within it as well.
    numbers = [buckets_of(batch, context.buckets * groups) // context.buckets for batch in batches]
    for group in range(groups):
        masks = [pa.array(number == group) for number in numbers]
        yield [batch.filter(mask) for batch, mask in zip(batches, masks, strict=True)]


def _sum_by_word(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    # Arrow's string columns end at 2 GiB in total, its large ones do not.
    wide = COUNTS_SCHEMA.set(0, pa.field("word", pa.large_string(), nullable=False))
    rows = pa.Table.from_batches(batches, COUNTS_SCHEMA).cast(wide)
    sums = rows.group_by("word", use_threads=False).aggregate([("count", "sum"), ("held_out", "sum")])
    return pa.table([sums["word"], sums["count_sum"], sums["held_out_sum"]], schema=wide)


@dataclasses.dataclass(frozen=True)
class GivenCounts:
    """Counts given instead of documents: their files, a hash of their content, and the sampled texts stored with them.

    `words` and `word_bytes` are upper bounds, since files may share words.
    """

    files: tuple[inputs.InputFile, ...]
    fingerprint: str
    samples: tuple[inputs.InputFile, ...]
    words: int
    word_bytes: int


def open_counts(paths: Sequence[str], held_out: float) -> GivenCounts:
    """Open folders of train-bpe and Parquet files of `word` and `count`, by name, folder or glob.

    Raises InputError for other files, for counts given twice, and for folders with another held-out fraction.
    """
    files: list[inputs.InputFile] = []
    samples: list[inputs.InputFile] = []
    for path in input_paths.expand_globs(paths):
        if not (storage.is_folder(path) and (has_manifest(path) or is_unfinished(path))):
            names = input_paths.expand_paths([path], [".parquet"])
            files += [inputs.InputFile(name, storage.size_bytes(name)) for name in names]
            continue
        folder = inputs.open_stage(path, ("train-bpe",))
        counts = folder.files("counts-", ".parquet")
        if not counts:
            raise InputError(f"{path}: contains no counts")
        fraction = folder.manifest.identity.config.get("held_out", held_out)
        if fraction != held_out:
            raise InputError(f"{path}: was counted with a held-out fraction of {fraction}; use --held-out {fraction}")
        files += counts
        samples += folder.files("sample-")
    known: set[str] = set()
    for file in files:
        real_path = storage.real_path(file.path)
        if real_path in known:
            raise InputError(f"{file.path}: is given to --counts twice; give it once")
        known.add(real_path)
    sizes = [measure(file.path) for file in files]
    return GivenCounts(
        tuple(files),
        inputs.fingerprint_files([file.path for file in (*files, *samples)]),
        tuple(samples),
        words=sum(words for words, _ in sizes),
        word_bytes=sum(word_bytes for _, word_bytes in sizes),
    )


def add_up_given(source: GivenCounts, run: StageRun) -> CountedWords:
    """Add up given counts, and join the sampled texts stored with them."""
    buckets = min(MAX_BUCKETS, 1 + max(source.word_bytes // BUCKET_BYTES, source.words // _BUCKET_WORDS))
    entries = run.map(
        split_counts,
        list(enumerate(source.files)),
        _BucketContext(run.output, buckets),
        name=lambda item: f"counts-{item[0]:05d}",
        phase="read",
        work=True,
        total=source.words,
        unit="words",
        serial=len(source.files) == 1,
    )
    text_bytes = 0
    for entry, file in zip(entries, source.files, strict=True):
        text_bytes += int(entry.counts["text_bytes"])
        _check_sums(text_bytes, file.path)

    def join() -> TaskResult:
        return TaskResult(files=(join_samples(source.samples, run.output, SAMPLE_TEXTS),))

    joined = run.once("documents", join if source.samples else TaskResult)
    work_files = [work_file(index) for index in range(len(source.files))]
    samples = [file.name for file in joined.files]
    return add_up(run, buckets, work_files, samples)


def split_counts(item: tuple[int, inputs.InputFile], context: _BucketContext) -> TaskResult:
    """Split a numbered file of counts into buckets.

    Raises InputError if it is not a file of counts, or has a word that GPT-2's split would divide.
    """
    index, file = item
    file.verify()
    with write_buckets(storage.join(context.output, work_file(index)), COUNTS_SCHEMA) as written:
        words = text_bytes = 0
        for batch in _read_batches(file.path):
            if batch.num_rows:
                counts = _check_counts(batch, file.path)
                text_bytes += _text_bytes(counts)
                _check_sums(text_bytes, file.path)
                written.write(counts, buckets_of(counts, context.buckets))
                words += batch.num_rows
                progress.advance(batch.num_rows)
    entry = written.entry(work_file(index))
    return TaskResult(records_in=words, records_out=words, counts={"text_bytes": text_bytes}, files=(entry,))


def measure(path: str) -> tuple[int, int]:
    """Return the number of rows of a file of counts, and about how many bytes its words have, from its footer."""
    with shards.open_stream(path) as stream:
        file = shards.open_parquet(stream, path)
        shards.require_columns(path, file.schema_arrow.names, ["word", "count"])
        rows, groups = file.metadata.num_rows, range(file.metadata.num_row_groups)
        chunks = [shards.column_chunks(stream, path, file.metadata, group, ["word"])[0] for group in groups]
        # Parquet stores the length of each text in four bytes, which do not count.
        return rows, max(rows, sum(chunk.total_uncompressed_size - 4 * chunk.num_values for chunk in chunks))


def _read_batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the count columns of a file, in batches that stay small if the words are long."""
    words, word_bytes = measure(path)
    with shards.open_stream(path) as stream:
        names = shards.open_parquet(stream, path).schema_arrow.names
    columns = [name for name in COUNTS_SCHEMA.names if name in names]
    rows = max(1, min(_ROWS_READ, BATCH_BYTES * words // max(1, word_bytes)))
    yield from shards.read_batches(path, columns, rows=rows)


def _check_counts(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """Return a batch of a file of counts in COUNTS_SCHEMA; raise InputError for invalid words or counts."""
    held_out = batch.column("held_out") if "held_out" in batch.schema.names else pa.array([0] * batch.num_rows)
    try:
        texts = batch.column("word").cast(pa.binary())
        words = texts.cast(pa.string())  # checks that it is UTF-8
        kept, held_out = batch.column("count").cast(pa.int64()), held_out.cast(pa.int64())
        times = pc.add_checked(kept, held_out)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"{path}: word must be text, and count an integer of at most 64 bits ({reason})") from error
    columns = [words, kept, held_out]
    if any(column.null_count for column in columns):
        raise InputError(f"{path}: has rows without a word or a count")
    if min(pc.min(kept).as_py(), pc.min(held_out).as_py()) < 0 or pc.min(times).as_py() < 1:
        raise InputError(f"{path}: has a word with a count below 1")
    _check_words(texts.to_pylist(), path)
    return pa.RecordBatch.from_arrays(columns, schema=COUNTS_SCHEMA)


def _check_words(words: list[bytes], path: str) -> None:
    """Raise InputError for a text that is more than one word: merges could then cross words."""
    if b"" not in words and sum(count for _, count in count_words(words)) == len(words):
        return
    wrong = next(word for word in words if [count for _, count in count_words([word])] != [1])
    raise InputError(
        f"{path}: {wrong.decode()!r} is not one word of GPT-2's split; count with `webtext train-bpe --count-only`, "
        "or split words as GPT-2 does"
    )


def _text_bytes(counts: pa.RecordBatch) -> int:
    """Return the bytes of text that counts represent; only roughly if that is too much to add up."""
    lengths = pc.binary_length(counts.column("word")).to_numpy().astype(np.int64)
    times = counts.column("count").to_numpy() + counts.column("held_out").to_numpy()
    estimate = float(lengths.astype(np.float64) @ times.astype(np.float64))
    return int(estimate) if estimate >= 2 * _MAX_TEXT_BYTES else int(lengths @ times)


def _check_sums(text_bytes: int, path: str) -> None:
    """Raise InputError for counts of more text than 64 bits can add up."""
    if text_bytes >= _MAX_TEXT_BYTES:
        raise InputError(
            f"{path}: its counts and those of the files before it add up to an exabyte of text or more, which "
            "cannot be added up in 64 bits; check that the column contains counts"
        )
