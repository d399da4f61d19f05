"""The phases that bring the counts of words together: from documents, or from counts made before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pipelines.core import inputs, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry, ShardEntry
from pipelines.core.run import StageRun, TaskResult
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counting import PLACES, CountTask, SizeTask, count_shard, measure_shard, places_within
from pipelines.stages.train_bpe.counts import AddTask, ReadTask, add_up, read_counts, require_sums
from pipelines.stages.train_bpe.counts_files import CountsInput
from pipelines.stages.train_bpe.sample import join_samples

# What the tasks keep for the report card, together, but at least so much each.
_SAMPLE_BYTES = 8 << 20
_LEAST_SAMPLE_BYTES = 64 << 10
# How much of the input, as it lies on the disk, gives the words of one bucket.
_BUCKET_BYTES = 256 << 20
_MOST_BUCKETS = 256
# Of counts, which the disk may hold in next to nothing: to add up so many words takes about 400 MB.
_BUCKET_WORDS = 2_000_000


@dataclasses.dataclass(frozen=True)
class Counted:
    """What the counting left: files of counts, how much they hold, files of sampled texts.

    `repeated_words` are those that occur at least twice. `sampled_below` is the place below which documents were taken.
    """

    files: tuple[FileEntry, ...]
    words: int
    word_bytes: int
    repeated_words: int
    repeated_word_bytes: int
    text_bytes: int
    samples: tuple[str, ...]
    sampled_below: int = PLACES


def count_documents(config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun) -> Counted:
    """Count the words of documents: of all, or of a sample of at most `max_bytes`."""
    sampled_below = _sampled_below(config, source, run)
    work = storage.basename(run.work)
    buckets = _buckets(source.files)
    sample_bytes = max(_LEAST_SAMPLE_BYTES, _SAMPLE_BYTES // len(source.shards))
    tasks = [
        CountTask(
            shard,
            config.held_out,
            config.group_field,
            sampled_below,
            sample_bytes,
            buckets,
            run.output,
            f"{work}/words-{shard.index:05d}.buckets",
        )
        for shard in source.shards
    ]
    entries = run.map(count_shard, tasks, phase="count", work=True, total=source.records, serial=len(tasks) == 1)
    run.once("documents", lambda: _account(entries, work))
    added = _add_up(run, [task.work_file for task in tasks], buckets)
    written = [file.name for entry in entries for file in entry.files]
    sampled = [storage.join(run.output, name) for name in written if name.startswith("sample-")]
    text_bytes = int(sum(entry.counts["text_bytes"] for entry in entries))
    return _counted(added, text_bytes, sampled, sampled_below)


def take_up_counts(source: CountsInput, run: StageRun) -> Counted:
    """Add up counts that were made before, and join the sampled texts that lie beside them."""
    work = storage.basename(run.work)
    buckets = min(_MOST_BUCKETS, 1 + max(source.word_bytes // _BUCKET_BYTES, source.words // _BUCKET_WORDS))
    tasks = [
        ReadTask(index, file, buckets, run.output, f"{work}/words-{index:05d}.buckets")
        for index, file in enumerate(source.files)
    ]
    entries = run.map(
        read_counts, tasks, phase="read", work=True, total=source.words, unit="words", serial=len(tasks) == 1
    )
    text_bytes = 0
    for entry, file in zip(entries, source.files, strict=True):
        text_bytes += int(entry.counts["text_bytes"])
        require_sums(text_bytes, file.path)
    joined = run.once("documents", lambda: _joined_sample(source, run.output))
    added = _add_up(run, [task.work_file for task in tasks], buckets)
    return _counted(added, 0, [storage.join(run.output, file.name) for file in joined.files], PLACES)


def _sampled_below(config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun) -> int:
    if config.max_bytes is None:
        return PLACES
    work = storage.basename(run.work)
    tasks = [SizeTask(shard, run.output, f"{work}/sizes-{shard.index:05d}") for shard in source.shards]
    entries = run.map(measure_shard, tasks, phase="measure", work=True, total=source.records, serial=len(tasks) == 1)
    below = places_within(run.output, [entry.files[0] for entry in entries], config.max_bytes)
    if not below:
        raise InputError(
            f"train-bpe: a sample of {config.max_bytes:,} bytes holds no document; give a larger --max-bytes"
        )
    if below == PLACES:
        run.note(f"all documents have less text than {config.max_bytes:,} bytes, so all are counted (--max-bytes)")
    return below


def _buckets(files: Sequence[inputs.InputFile]) -> int:
    return min(_MOST_BUCKETS, 1 + inputs.size_on_disk(files) // _BUCKET_BYTES)


def _account(entries: Sequence[ShardEntry], work: str) -> TaskResult:
    """Make the lists and samples that the counting tasks wrote part of the result; their work files are not."""
    written = (file for entry in entries for file in entry.files)
    return TaskResult(files=tuple(file for file in written if not file.name.startswith(f"{work}/")))


def _joined_sample(source: CountsInput, output: str) -> TaskResult:
    return TaskResult(files=(join_samples(source.samples, output, _SAMPLE_BYTES),) if source.samples else ())


def _add_up(run: StageRun, work_files: Sequence[str], buckets: int) -> list[ShardEntry]:
    tasks = [AddTask(bucket, buckets, tuple(work_files), run.output) for bucket in range(buckets)]
    return run.map(add_up, tasks, phase="add", unit="words", serial=len(tasks) == 1)


def _counted(added: Sequence[ShardEntry], text_bytes: int, samples: Sequence[str], sampled_below: int) -> Counted:
    def total(name: str) -> int:
        return int(sum(entry.counts[name] for entry in added))

    return Counted(
        files=tuple(entry.files[0] for entry in added),
        words=total("words"),
        word_bytes=total("word_bytes"),
        repeated_words=total("repeated_words"),
        repeated_word_bytes=total("repeated_word_bytes"),
        text_bytes=text_bytes,
        samples=tuple(samples),
        sampled_below=sampled_below,
    )
