"""The phases that collect word counts: from documents, or from files of counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pipelines import storage
from pipelines.engine.manifest import ShardEntry
from pipelines.engine.run import StageRun, TaskResult, result_files
from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counting import PLACES, CountContext, count_shard, measure_shard, places_within
from pipelines.stages.train_bpe.counts import BucketContext, Limits, add_up, check_sums, read_counts, work_file
from pipelines.stages.train_bpe.counts_files import CountsInput
from pipelines.stages.train_bpe.sample import join_samples

_MAX_BUCKETS = 256


@dataclasses.dataclass(frozen=True)
class Counted:
    """The collected counts: paths of the files of counts and of sampled texts, and the size of the vocabulary.

    `repeated_words` are those that occur at least twice. Documents with a place below `sampled_below` were counted.
    """

    paths: tuple[str, ...]
    words: int
    word_bytes: int
    repeated_words: int
    repeated_word_bytes: int
    text_bytes: int
    samples: tuple[str, ...]
    sampled_below: int = PLACES


def count_documents(
    config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun, limits: Limits, memory_bytes: int | None
) -> Counted:
    """Count the words of all documents, or of a sample of at most `max_bytes`; a task needs `memory_bytes`."""
    sampled_below = _sampled_below(config, source, run)
    buckets = min(_MAX_BUCKETS, 1 + inputs.size_on_disk(source.files) // limits.bucket_bytes)
    context = CountContext(
        config=config,
        sampled_below=sampled_below,
        sample_bytes=max(limits.min_sample_bytes, limits.sample_bytes // len(source.shards)),
        buckets=buckets,
        output=run.output,
        limits=limits,
    )
    is_single = len(source.shards) == 1
    entries = run.map(
        count_shard,
        source.shards,
        context,
        phase="count",
        work=True,
        total=source.records,
        serial=is_single,
        memory_bytes=memory_bytes,
    )
    results = result_files(entries)
    run.once("documents", lambda: results)
    added = _add_up(run, buckets, [work_file(shard.index) for shard in source.shards], limits)
    samples = [file.name for file in results.files if file.name.startswith("sample-")]
    text_bytes = int(sum(entry.counts["text_bytes"] for entry in entries))
    return _counted(run, added, samples, text_bytes=text_bytes, sampled_below=sampled_below)


def add_up_counts(source: CountsInput, run: StageRun, limits: Limits) -> Counted:
    """Add up files of counts, and join the sampled texts stored with them."""
    buckets = min(_MAX_BUCKETS, 1 + max(source.word_bytes // limits.bucket_bytes, source.words // limits.bucket_words))
    entries = run.map(
        read_counts,
        list(enumerate(source.files)),
        BucketContext(run.output, buckets, limits),
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
        check_sums(text_bytes, file.path)

    def join() -> TaskResult:
        return TaskResult(files=(join_samples(source.samples, run.output, limits.sample_bytes),))

    joined = run.once("documents", join if source.samples else TaskResult)
    added = _add_up(run, buckets, [work_file(index) for index in range(len(source.files))], limits)
    return _counted(run, added, [file.name for file in joined.files])


def _sampled_below(config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun) -> int:
    if config.max_bytes is None:
        return PLACES
    is_single = len(source.shards) == 1
    entries = run.map(
        measure_shard, source.shards, run.output, phase="measure", work=True, total=source.records, serial=is_single
    )
    below = places_within(run.output, [entry.files[0] for entry in entries], config.max_bytes)
    if not below:
        raise InputError(
            f"train-bpe: a sample of {config.max_bytes:,} bytes contains no document; use a larger --max-bytes"
        )
    if below == PLACES:
        run.note(f"all documents have less text than {config.max_bytes:,} bytes, so all are counted (--max-bytes)")
    return below


def _add_up(run: StageRun, buckets: int, work_files: Sequence[str], limits: Limits) -> list[ShardEntry]:
    context = BucketContext(run.output, buckets, limits, tuple(work_files))
    return run.map(
        add_up,
        range(buckets),
        context,
        name=lambda bucket: f"bucket-{bucket:05d}",
        phase="add",
        unit="words",
        serial=buckets == 1,
    )


def _counted(
    run: StageRun,
    added: Sequence[ShardEntry],
    samples: Sequence[str],
    *,
    text_bytes: int = 0,
    sampled_below: int = PLACES,
) -> Counted:
    names = ("words", "word_bytes", "repeated_words", "repeated_word_bytes")
    return Counted(
        paths=tuple(storage.join(run.output, entry.files[0].name) for entry in added),
        samples=tuple(storage.join(run.output, name) for name in samples),
        text_bytes=text_bytes,
        sampled_below=sampled_below,
        **{name: int(sum(entry.counts[name] for entry in added)) for name in names},
    )
