"""Adds every n-gram of the corpus to a Bloom filter, or makes one filter of several.

The different n-grams are counted first, by a sketch, so that the filter is as large as it must be. Then it is made in
ranges of its blocks, each in a pass over the documents, which are joined one behind the other. Paper, section 4.
"""

from __future__ import annotations

import dataclasses
import time
import unicodedata
from collections.abc import Sequence

from pipelines.algorithms.bloom.file_format import HEADER_BYTES, Header
from pipelines.algorithms.bloom.sizing import FilterSize, size_for
from pipelines.algorithms.ngrams import hashing
from pipelines.core import inputs, storage
from pipelines.core.errors import UsageError, WebtextError
from pipelines.core.machine import available_memory_bytes
from pipelines.core.ngram_filter import DESCRIPTION, INDEX, PYBLOOM_LIVE, STAGE_NAME
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, stage_run
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.merging import (
    CheckTask,
    Mergeable,
    check_index,
    merged_config,
    merged_corpora,
    merged_header,
    open_indexes,
)
from pipelines.stages.overlap_index.parts import (
    SEED,
    AddTask,
    BlockRange,
    MergeTask,
    add_part,
    join_parts,
    merge_part,
    ranges_of,
)
from pipelines.stages.overlap_index.pybloom import write_pybloom_filter
from pipelines.stages.overlap_index.sketch import Counted, SketchTask, count_of_all, lists_of_dropped, sketch_shard

STAGE = Stage(STAGE_NAME, 2, (INDEX, DESCRIPTION))
_MORE_THAN_CHANCE = 1.05

# Adding is limited by the memory, reading and hashing by the core.
_ADDS_A_SECOND = 5e6
_TOLD_FROM_S = 60
# By how much the estimate of a sketch may be too high; beyond, a number of n-grams is too small for sure.
_ESTIMATE_TOO_HIGH = 0.01


def overlap_index(
    config: OverlapIndexConfig,
    *,
    documents: str | Sequence[str] | None,
    output: str,
    options: RunOptions,
    merge: Sequence[str] = (),
) -> Summary:
    """Write `index.bloom`, a filter with every n-gram of the documents, and `index.json` about it.

    An n-gram never crosses from one document into the next. The filter is made for as many different n-grams as a
    sketch of the documents says at most, or for `items`. With `merge`, the folders of two or more indexes that were
    made alike, it is made of them, and `documents` is not read.

    Raises InputError where no document is long enough for an n-gram, and where indexes do not fit together; UsageError
    where there are more n-grams than `items`; WebtextError where disk or memory do not suffice. Paper, section 4.
    """
    if merge:
        return _merge(config, merge, output, options)
    if documents is None:
        raise UsageError("overlap-index: neither documents nor indexes are given; name them with --input or --merge")
    source = inputs.open_documents(documents, config.text_field)
    with stage_run(STAGE, config, {"documents": source.fingerprint}, output, options) as run:
        if not run.finished:
            counted, seconds = _sketch(config, source, run)
            items = _items(config, counted)
            if config.filter == PYBLOOM_LIVE:
                write_pybloom_filter(config, source, counted, items, run)
            else:
                _write_filter(config, source, counted, items, seconds, run)
        return run.finish()


def _sketch(config: OverlapIndexConfig, source: inputs.DocumentInput, run: StageRun) -> tuple[Counted, float]:
    """Count the n-grams, and the seconds that it took: 0 where some of it was done before."""
    work = storage.basename(run.work)
    tasks = [SketchTask(shard, config.ngram, config.normalization, run.output, work) for shard in source.shards]
    fresh = not any(run.resumed_entry("sketch", task.name) for task in tasks)
    started = time.monotonic()
    entries = run.map(sketch_shard, tasks, phase="sketch", work=True, total=source.records)
    seconds = time.monotonic() - started
    run.once("sketched", lambda: lists_of_dropped(entries))
    return count_of_all(entries, run.output, config.ngram), seconds if fresh else 0.0


def _items(config: OverlapIndexConfig, counted: Counted) -> int:
    """Return for how many n-grams the filter is made; refuse a number that is too small for sure."""
    if config.items is None:
        return counted.most
    if config.items < counted.distinct * (1 - _ESTIMATE_TOO_HIGH):
        raise UsageError(
            f"--items {config.items}: the documents hold about {counted.distinct:,} different n-grams; give "
            f"{counted.most} or more, and where indexes are to be merged as many as they hold together"
        )
    return config.items


def _write_filter(
    config: OverlapIndexConfig,
    source: inputs.DocumentInput,
    counted: Counted,
    items: int,
    seconds: float,
    run: StageRun,
) -> None:
    size = _size(items, config.error_rate)
    ranges = ranges_of(size, config.memory_limit_mb << 20)
    _require_room(size, ranges, run)
    _say_size(size, ranges, counted, items, seconds, run)
    work = storage.basename(run.work)
    tasks = [
        AddTask(each, source.shards, size, config.ngram, config.normalization, run.output, work) for each in ranges
    ]
    parts = run.map(add_part, tasks, phase="add", work=True, total=counted.documents * len(tasks))
    header = Header(
        n=config.ngram,
        normalisation={**dataclasses.asdict(config.normalization), "unicode": unicodedata.unidata_version},
        ngram_hash=hashing.NAME,
        seed=SEED,
        error_rate=config.error_rate,
        sketch_items=items,
        blocks=size.blocks,
        k=size.k,
        items=0,
        fill=0.0,
        error_bound=0.0,
        documents=counted.documents,
        corpus=source.fingerprint,
        bits_sha256="",
    )
    run.once("join", lambda: join_parts(header, [source.fingerprint], parts, run.output))


def _size(items: int, error_rate: float) -> FilterSize:
    try:
        return size_for(items, error_rate)
    except ValueError as error:
        raise UsageError(f"--error-rate {error_rate:g}: {error}") from error


def _require_room(size: FilterSize, ranges: Sequence[BlockRange], run: StageRun) -> None:
    """Raise WebtextError where the disk cannot hold the filter and its parts, or the memory a part in each worker."""
    left = [
        each
        for each in ranges
        if run.resumed_entry("add", each.name) is None and run.resumed_entry("merge", each.name) is None
    ]
    needed = HEADER_BYTES + size.size_bytes + sum(each.size_bytes for each in left)
    free = storage.free_bytes(run.output)
    if free is not None and needed > free:
        raise WebtextError(
            f"{run.output}: the filter takes {size.size_bytes / 1e9:,.2f} GB, and its parts as much until it is done, "
            f"but {free / 1e9:,.2f} GB are free there; free some, choose another --output, or raise --error-rate"
        )
    part = max(each.size_bytes for each in ranges)
    at_a_time = min(run.workers, len(left))
    memory = available_memory_bytes()
    if memory is not None and at_a_time * part > memory:
        raise WebtextError(
            f"overlap-index: a part of the filter takes {part / 1e9:,.2f} GB in each of {at_a_time} worker processes, "
            f"but {memory / 1e9:,.2f} GB are free; take fewer --workers, or lower "
            "--memory-limit-mb, which takes more passes over the documents"
        )


def _say_size(
    size: FilterSize, ranges: Sequence[BlockRange], counted: Counted, items: int, seconds: float, run: StageRun
) -> None:
    run.note(
        f"{counted.ngrams:,} n-grams, about {counted.distinct:,} of them different: a filter for {items:,} takes "
        f"{size.size_bytes / 1e6:,.1f} MB, made in {len(ranges)} {'part' if len(ranges) == 1 else 'parts'}, each in a "
        "pass over the documents"
    )
    # A pass takes what the sketch took; of workers that have no part to make there is no use.
    at_a_time = min(run.workers, len(ranges))
    needed_s = (seconds * run.workers * len(ranges) + counted.ngrams / _ADDS_A_SECOND) / at_a_time if seconds else 0.0
    if needed_s > _TOLD_FROM_S:
        run.note(f"that takes about {needed_s / 60:,.0f} min")


def _merge(config: OverlapIndexConfig, folders: Sequence[str], output: str, options: RunOptions) -> Summary:
    indexes = open_indexes(folders)
    config = merged_config(config, indexes[0].header)
    read = {f"index of {each.header.corpus[:12]}": each.folder.fingerprint for each in indexes}
    with stage_run(STAGE, config, read, output, options) as run:
        if not run.finished:
            _merge_filters(config, indexes, run)
        return run.finish()


def _merge_filters(config: OverlapIndexConfig, indexes: Sequence[Mergeable], run: StageRun) -> None:
    header = merged_header(indexes)
    size = FilterSize(header.blocks, header.k)
    ranges = ranges_of(size, config.memory_limit_mb << 20)
    _require_room(size, ranges, run)
    checks = [CheckTask(number, each.folder) for number, each in enumerate(indexes)]
    run.map(check_index, checks, phase="check", work=True, total=header.documents)
    work, paths = storage.basename(run.work), tuple(each.folder.file.path for each in indexes)
    tasks = [MergeTask(each, paths, run.output, work) for each in ranges]
    parts = run.map(merge_part, tasks, phase="merge", work=True, total=len(paths) * size.blocks, unit="blocks")
    entry = run.once("join", lambda: join_parts(header, merged_corpora(indexes), parts, run.output))
    written = storage.read_json(storage.join(run.output, DESCRIPTION))
    # One that holds just what it was made for may be a little over the rate.
    if written["error_bound"] > header.error_rate * _MORE_THAN_CHANCE:
        run.note(
            f"the merged filter holds about {entry.counts['distinct_ngrams_estimated']:,} n-grams and was made for "
            f"{header.sketch_items:,}: it finds absent ones at {written['error_bound']:.1e}, not "
            f"{header.error_rate:g}; make the indexes with more --items for fewer"
        )
