"""Adds every n-gram of the corpus to a Bloom filter, or merges several filters.

First the distinct n-grams are counted with a sketch, which sets the size of the filter. Then the filter is built in
ranges of its blocks, each in a pass over the documents. Paper, section 4.
"""

from __future__ import annotations

import dataclasses
import hashlib
import unicodedata
from collections.abc import Sequence

from pipelines import storage
from pipelines.algorithms.bloom.blocked import BLOCK_BYTES
from pipelines.algorithms.bloom.sizing import FilterSize, size_for
from pipelines.algorithms.ngrams import hashing
from pipelines.engine.machine import check_memory
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, result_files, stage_run
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.extras import require_extra
from pipelines.format import format_bytes, format_number, plural
from pipelines.records import inputs
from pipelines.records.ngram_filter import (
    DESCRIPTION,
    HEADER_BYTES,
    INDEX,
    PYBLOOM_LIVE,
    STAGE_NAME,
    FilterFolder,
    Header,
    open_filter_folder,
)
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.parts import (
    SEED,
    FilterSource,
    MergeSource,
    NgramCounts,
    SketchContext,
    add_part,
    join_parts,
    merge_part,
    merge_sketches,
    part_name,
    sketch_shard,
    split_blocks,
)
from pipelines.stages.overlap_index.pybloom import write_pybloom_filter

STAGE = Stage(STAGE_NAME, 4, (INDEX, DESCRIPTION))
# The error of a filter that contains exactly as many n-grams as it was sized for may exceed its target by this.
_ERROR_TOLERANCE = 1.05
# Memory of a worker in addition to its part of the filter: libraries, kernels, a batch of documents.
_PROCESS_BYTES = 250 << 20
# The relative error of a sketch: --items below the estimate by more than this is certainly too small.
_SKETCH_ERROR = 0.01
# The fields of the header that must be equal in indexes to be merged, and the options that set them.
_EQUAL_FIELDS = {
    "n": "--ngram",
    "normalisation": "--apostrophes, --letters and --lines, and with the same version of Python",
    "seed": "seed",
    "error_rate": "--error-rate",
    "blocks": "--items",
    "k": "--items",
}


def overlap_index(
    config: OverlapIndexConfig,
    *,
    documents: str | Sequence[str] | None,
    output: str,
    options: RunOptions,
    merge: Sequence[str] = (),
) -> Summary:
    """Write `index.bloom`, a filter with every n-gram of the documents, and `index.json`, its description.

    An n-gram never crosses from one document into the next. The filter is sized for the upper bound of the distinct
    n-grams by a sketch of the documents, or for `items`. With `merge`, the folders of two or more indexes with the same
    options, these are merged, and `documents` is not read.

    Raises InputError if no document is long enough for an n-gram, and for indexes that cannot be merged; UsageError for
    more n-grams than `items`; WebtextError if the disk or the memory is too small. Paper, section 4.
    """
    if merge:
        return _merge_indexes(config, merge, output, options)
    if documents is None:
        raise UsageError("overlap-index: neither documents nor indexes; name them with --input or --merge")
    if config.filter == PYBLOOM_LIVE:
        require_extra("pybloom", f"--filter {PYBLOOM_LIVE}", "pybloom_live")
    source = inputs.open_configured(documents, config, options, output)
    options = options.for_input(inputs.size_on_disk(source.files))
    prints = {"documents": source.fingerprint}
    with stage_run(STAGE, config, inputs=prints, output=output, options=options, texts=source.files) as run:
        if run.finished:
            return run.finish()
        context = SketchContext(config, run.output)
        entries = run.map(sketch_shard, source.shards, context, phase="sketch", work=True, total=source.records)
        run.once("sketched", lambda: result_files(entries))
        ngrams = merge_sketches(entries, run.output, config.ngram)
        items = _choose_items(config, ngrams)
        if config.filter == PYBLOOM_LIVE:
            write_pybloom_filter(config, source, ngrams=ngrams, capacity=items, run=run)
        else:
            _write_blocked_filter(config, source, ngrams=ngrams, items=items, run=run)
        return run.finish()


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


def _write_blocked_filter(
    config: OverlapIndexConfig, source: inputs.DocumentInput, ngrams: NgramCounts, items: int, run: StageRun
) -> None:
    try:
        size = size_for(items, config.error_rate)
    except ValueError as error:
        raise UsageError(f"--error-rate {config.error_rate:g}: {error}") from error
    header = Header(
        n=config.ngram,
        normalisation={**dataclasses.asdict(config.normalization), "unicode": unicodedata.unidata_version},  # type: ignore[typeddict-item]
        ngram_hash=hashing.NAME,
        seed=SEED,
        error_rate=config.error_rate,
        sketch_items=items,
        blocks=size.blocks,
        k=size.k,
        items=0,
        fill=0.0,
        error_bound=0.0,
        documents=ngrams.documents,
        corpus=source.fingerprint,
        bits_sha256="",
    )
    ranges = split_blocks(size, config.memory_limit_mib << 20)
    task_bytes = _check_space(size, ranges, "add", run)
    run.note(
        f"{ngrams.ngrams:,} n-grams; filter size {format_bytes(size.size_bytes)} for up to {items:,} distinct "
        f"n-grams, built in {plural(len(ranges), 'pass', 'passes')}"
    )
    parts = run.map(
        add_part,
        ranges,
        FilterSource(source.undivided, size, config, run.output),
        name=part_name,
        phase="add",
        work=True,
        total=ngrams.documents * len(ranges),
        memory_bytes=task_bytes,
    )
    run.once("join", lambda: join_parts(header, [source.fingerprint], parts, run.output))


def _check_space(size: FilterSize, ranges: Sequence[range], phase: str, run: StageRun) -> int:
    """Return the memory of a task that builds a part.

    Raises WebtextError if the disk is too small for the filter and its parts, or memory for a part per worker.
    """
    new_ranges = [blocks for blocks in ranges if not run.resumed_entry(phase, part_name(blocks))]
    needed_bytes = HEADER_BYTES + size.size_bytes + sum(len(blocks) * BLOCK_BYTES for blocks in new_ranges)
    free_bytes = storage.free_bytes(run.output)
    if free_bytes is not None and needed_bytes > free_bytes:
        raise WebtextError(
            f"{run.output}: the filter takes {format_bytes(size.size_bytes)}, and its parts as much while it is built, "
            f"but {format_bytes(free_bytes)} are free; free some space, choose another --output, or raise --error-rate"
        )
    part = max(len(blocks) for blocks in ranges) * BLOCK_BYTES
    workers = min(run.workers, len(new_ranges))
    task = f"overlap-index: a part of the filter in each of {plural(workers, 'worker process', 'worker processes')}"
    advice = "use fewer --workers, or lower --memory-limit-mib, which takes more passes over the documents"
    check_memory(task, workers * part, run.memory_bytes, advice)
    return part + _PROCESS_BYTES


def _merge_indexes(config: OverlapIndexConfig, paths: Sequence[str], output: str, options: RunOptions) -> Summary:
    indexes = _open_indexes(paths)
    first = indexes[0].header
    # The options that the indexes were built with.
    config = dataclasses.replace(
        config,
        **dataclasses.asdict(first.normalization),
        ngram=first.n,
        error_rate=first.error_rate,
        items=first.sketch_items,
    )
    fingerprints = {f"index of {index.header.corpus[:12]}": index.fingerprint for index in indexes}
    files = [index.file for index in indexes]
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options, texts=files) as run:
        if run.finished:
            return run.finish()
        corpora = sorted(corpus for index in indexes for corpus in index.corpora)
        header = dataclasses.replace(
            first,
            sketch_items=max(index.header.sketch_items for index in indexes),
            documents=sum(index.header.documents for index in indexes),
            corpus=hashlib.sha256("\n".join(corpora).encode()).hexdigest(),
        )
        size = FilterSize(header.blocks, header.k)
        ranges = split_blocks(size, config.memory_limit_mib << 20)
        task_bytes = _check_space(size, ranges, "merge", run)
        run.map(
            _verify_index,
            range(len(indexes)),
            indexes,
            name=lambda number: f"index-{number:05d}",
            phase="check",
            work=True,
            total=header.documents,
        )
        parts = run.map(
            merge_part,
            ranges,
            MergeSource(tuple(index.file.path for index in indexes), run.output),
            name=part_name,
            phase="merge",
            work=True,
            total=len(indexes) * size.blocks,
            unit="blocks",
            memory_bytes=task_bytes,
        )
        entry = run.once("join", lambda: join_parts(header, corpora, parts, run.output))
        error_bound = storage.read_json(storage.join(run.output, DESCRIPTION))["error_bound"]
        if error_bound > header.error_rate * _ERROR_TOLERANCE:
            run.note(
                f"the merged filter contains about {entry.counts['estimated_distinct_ngrams']:,} n-grams but was sized "
                f"for {header.sketch_items:,}: its false-positive rate is {error_bound:.1e}, not "
                f"{header.error_rate:g}; build the indexes with more --items for a lower rate"
            )
        return run.finish()


def _open_indexes(paths: Sequence[str]) -> list[FilterFolder]:
    """Open indexes to be merged; their order does not depend on that of the paths.

    Raises UsageError for fewer than two; InputError for indexes that differ, naming the difference, and for two that
    contain the same documents, which would be counted twice.
    """
    if len(paths) < 2:
        raise UsageError(f"--merge {paths[0]}: only one index; name two or more, each with --merge")
    indexes = [open_filter_folder(path) for path in paths]
    path_of_corpus: dict[str, str] = {}
    for index in indexes:
        for field, flags in _EQUAL_FIELDS.items():
            expected, value = getattr(indexes[0].header, field), getattr(index.header, field)
            if value != expected:
                raise InputError(
                    f"{index.path}: cannot be merged with {indexes[0].path}: {field} is {_format_value(value)}, not "
                    f"{_format_value(expected)}; build both with the same {flags}"
                )
        for corpus in index.corpora:
            if corpus in path_of_corpus:
                raise InputError(
                    f"{index.path}: contains the same documents as {path_of_corpus[corpus]} (fingerprint "
                    f"{corpus[:12]}); name each index once"
                )
            path_of_corpus[corpus] = index.path
    return sorted(indexes, key=lambda index: index.header.corpus)


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {choice}" for name, choice in sorted(value.items()))
    return format_number(value, 6)


def _verify_index(number: int, indexes: Sequence[FilterFolder]) -> TaskResult:
    index = indexes[number]
    index.file.verify()
    return TaskResult(records_in=index.header.documents, records_out=index.header.documents)
