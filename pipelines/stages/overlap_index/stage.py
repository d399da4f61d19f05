"""Adds every n-gram of the corpus to a Bloom filter, or merges several filters.

First the distinct n-grams are counted with a sketch, which sets the size of the filter. Then the filter is built in
ranges of its blocks, each in a pass over the documents. Paper, section 4.
"""

from __future__ import annotations

import dataclasses
import time
import unicodedata
from collections.abc import Sequence

from pipelines import storage
from pipelines.algorithms.bloom.file_format import HEADER_BYTES, Header
from pipelines.algorithms.bloom.sizing import FilterSize, size_for
from pipelines.algorithms.ngrams import hashing
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, result_files, stage_run
from pipelines.errors import UsageError, WebtextError
from pipelines.format import format_bytes, format_duration, plural
from pipelines.records import inputs
from pipelines.records.ngram_filter import DESCRIPTION, INDEX, PYBLOOM_LIVE, STAGE_NAME
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.merging import (
    merged_config,
    merged_corpora,
    merged_header,
    open_indexes,
    verify_index,
)
from pipelines.stages.overlap_index.parts import (
    SEED,
    SMALL_PART_BYTES,
    BlockRange,
    FilterSource,
    add_part,
    join_parts,
    merge_part,
    split_blocks,
)
from pipelines.stages.overlap_index.pybloom import write_pybloom_filter
from pipelines.stages.overlap_index.sketch import NgramCounts, merge_sketches, sketch_shard

STAGE = Stage(STAGE_NAME, 2, (INDEX, DESCRIPTION))
# The error of a filter that contains just what it was sized for varies by this factor.
_ERROR_TOLERANCE = 1.05
# Adding is limited by memory, reading and hashing by the core.
_ADDS_PER_SECOND = 5e6
_LONG_S = 60
# Of a worker, in addition to its part of the filter: libraries, kernels, a batch of documents.
_PROCESS_BYTES = 250 << 20
# The relative error of a sketch; below, a number of items is certainly too small.
_SKETCH_ERROR = 0.01


def overlap_index(
    config: OverlapIndexConfig,
    *,
    documents: str | Sequence[str] | None,
    output: str,
    options: RunOptions,
    merge: Sequence[str] = (),
    small_part_bytes: int = SMALL_PART_BYTES,
) -> Summary:
    """Write `index.bloom`, a filter with every n-gram of the documents, and `index.json`, its description.

    An n-gram never crosses from one document into the next. The filter is sized for the upper bound of the distinct
    n-grams by a sketch of the documents, or for `items`. With `merge`, the folders of two or more indexes with the same
    options, these are merged, and `documents` is not read. A filter up to `small_part_bytes` is built in one part.

    Raises InputError if no document is long enough for an n-gram, and for indexes that cannot be merged; UsageError for
    more n-grams than `items`; WebtextError for too little disk or memory. Paper, section 4.
    """
    if merge:
        return _merge_indexes(config, merge, output, options)
    if documents is None:
        raise UsageError("overlap-index: neither documents nor indexes; name them with --input or --merge")
    source = inputs.open_configured(documents, config, options)
    options = options.for_input(inputs.size_on_disk(source.files))
    with stage_run(STAGE, config, inputs={"documents": source.fingerprint}, output=output, options=options) as run:
        if not run.finished:
            ngrams = _count_ngrams(config, source, run)
            items = _choose_items(config, ngrams)
            if config.filter == PYBLOOM_LIVE:
                write_pybloom_filter(config, source, ngrams=ngrams, capacity=items, run=run)
            else:
                try:
                    size = size_for(items, config.error_rate)
                except ValueError as error:
                    raise UsageError(f"--error-rate {config.error_rate:g}: {error}") from error
                ranges = split_blocks(size, config.memory_limit_mb << 20, small_part_bytes)
                _check_space(size, ranges, run)
                _note_size(ngrams, items, ranges, run)
                context = FilterSource(source.shards, size, config, run.output)
                total = ngrams.documents * len(ranges)
                parts = run.map(
                    add_part, ranges, context, phase="add", work=True, total=total, memory_bytes=_task_bytes(ranges)
                )
                header = _unmeasured_header(
                    config, size, items=items, documents=ngrams.documents, fingerprint=source.fingerprint
                )
                run.once("join", lambda: join_parts(header, [source.fingerprint], parts, run.output))
        return run.finish()


def _count_ngrams(config: OverlapIndexConfig, source: inputs.DocumentInput, run: StageRun) -> NgramCounts:
    is_fresh = not any(run.resumed_entry("sketch", shard.name) for shard in source.shards)
    started = time.monotonic()
    context = (config, run.output)
    entries = run.map(sketch_shard, source.shards, context, phase="sketch", work=True, total=source.records)
    seconds = time.monotonic() - started
    run.once("sketched", lambda: result_files(entries))
    return merge_sketches(entries, run.output, config.ngram, seconds if is_fresh else None)


def _choose_items(config: OverlapIndexConfig, ngrams: NgramCounts) -> int:
    """Return the number of n-grams to size the filter for; raise UsageError if `items` is certainly too small."""
    if config.items is None:
        return ngrams.max_distinct
    if config.items < ngrams.distinct * (1 - _SKETCH_ERROR):
        raise UsageError(
            f"--items {config.items}: the documents have about {ngrams.distinct:,} distinct n-grams; set it to at "
            f"least {ngrams.max_distinct}, or, for indexes to be merged, to the number in all of them together"
        )
    return config.items


def _unmeasured_header(
    config: OverlapIndexConfig, size: FilterSize, items: int, documents: int, fingerprint: str
) -> Header:
    return Header(
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
        documents=documents,
        corpus=fingerprint,
        bits_sha256="",
    )


def _check_space(size: FilterSize, ranges: Sequence[BlockRange], run: StageRun) -> None:
    """Raise WebtextError if the disk is too small for the filter and its parts, or memory for a part per worker."""
    phases = ("add", "merge")
    todo = [blocks for blocks in ranges if not any(run.resumed_entry(phase, blocks.name) for phase in phases)]
    needed = HEADER_BYTES + size.size_bytes + sum(blocks.size_bytes for blocks in todo)
    free = storage.free_bytes(run.output)
    if free is not None and needed > free:
        raise WebtextError(
            f"{run.output}: the filter takes {format_bytes(size.size_bytes)}, and its parts as much while it is built, "
            f"but {format_bytes(free)} are free; free some space, choose another --output, or raise --error-rate"
        )
    part = max(blocks.size_bytes for blocks in ranges)
    workers = min(run.workers, len(todo))
    memory = run.memory_bytes
    if memory is not None and workers * part > memory:
        raise WebtextError(
            f"overlap-index: a part of the filter takes {format_bytes(part)} in each of "
            f"{plural(workers, 'worker process', 'worker processes')}, but {format_bytes(memory)} of memory are free; "
            "use fewer --workers, or lower --memory-limit-mb, which takes more passes over the documents"
        )


def _task_bytes(ranges: Sequence[BlockRange]) -> int:
    return max(blocks.size_bytes for blocks in ranges) + _PROCESS_BYTES


def _note_size(ngrams: NgramCounts, items: int, ranges: Sequence[BlockRange], run: StageRun) -> None:
    size = sum(blocks.size_bytes for blocks in ranges)
    run.note(
        f"{ngrams.ngrams:,} n-grams, about {ngrams.distinct:,} of them distinct: a filter for {items:,} takes "
        f"{format_bytes(size)}, built in {plural(len(ranges), 'part')}, each in a pass over the documents"
    )
    if ngrams.seconds is not None:
        # A pass takes as long as the sketch.
        core_seconds = ngrams.seconds * run.workers * len(ranges) + ngrams.ngrams / _ADDS_PER_SECOND
        seconds = core_seconds / min(run.workers, len(ranges))
        if seconds > _LONG_S:
            run.note(f"estimated time: {format_duration(seconds)}")


def _merge_indexes(config: OverlapIndexConfig, paths: Sequence[str], output: str, options: RunOptions) -> Summary:
    indexes = open_indexes(paths)
    config = merged_config(config, indexes[0].blocked_header)
    fingerprints = {f"index of {index.corpus[:12]}": index.fingerprint for index in indexes}
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options) as run:
        if run.finished:
            return run.finish()
        header = merged_header(indexes)
        size = FilterSize(header.blocks, header.k)
        ranges = split_blocks(size, config.memory_limit_mb << 20)
        _check_space(size, ranges, run)
        run.map(
            verify_index,
            range(len(indexes)),
            indexes,
            name=lambda number: f"index-{number:05d}",
            phase="check",
            work=True,
            total=header.documents,
        )
        context = (tuple(index.file.path for index in indexes), run.output)
        total = len(indexes) * size.blocks
        memory_bytes = _task_bytes(ranges)
        parts = run.map(
            merge_part, ranges, context, phase="merge", work=True, total=total, unit="blocks", memory_bytes=memory_bytes
        )
        entry = run.once("join", lambda: join_parts(header, merged_corpora(indexes), parts, run.output))
        error_bound = storage.read_json(storage.join(run.output, DESCRIPTION))["error_bound"]
        if error_bound > header.error_rate * _ERROR_TOLERANCE:
            run.note(
                f"the merged filter contains about {entry.counts['distinct_ngrams_estimated']:,} n-grams but was sized "
                f"for {header.sketch_items:,}: its false-positive rate is {error_bound:.1e}, not {header.error_rate:g};"
                " build the indexes with more --items for a lower rate"
            )
        return run.finish()
