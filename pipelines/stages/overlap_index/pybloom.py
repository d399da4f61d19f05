"""The filter of the library pybloom-live: a file that other programs read, to which n-grams are added as words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines import progress, storage
from pipelines.algorithms.bloom.pybloom import estimated_items, false_positive_rate, fill, filter_bytes
from pipelines.algorithms.ngrams.words import describe, text_ngrams
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import WebtextError
from pipelines.format import format_bytes
from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.records.ngram_filter import INDEX, PYBLOOM_LIVE, read_pybloom
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.parts import write_description
from pipelines.stages.overlap_index.sketch import NgramCounts

# Each part is a whole filter on disk, so there are few; their number does not depend on the workers, so that equal
# inputs give equal parts.
_PARTS = 8
_READ_BYTES = 1 << 20


# The documents, the number of parts, the capacity of the filter, the config and the output folder.
_Context = tuple[tuple[inputs.DocumentShard, ...], int, int, OverlapIndexConfig, str]


def write_pybloom_filter(
    config: OverlapIndexConfig, source: inputs.DocumentInput, ngrams: NgramCounts, capacity: int, run: StageRun
) -> None:
    """Write `index.bloom`, a file of pybloom-live, and `index.json`.

    Raises WebtextError if the filter exceeds the memory limit: each worker holds all of it.
    """
    _check_memory(config, capacity, run)
    parts = min(_PARTS, len(source.shards))
    context: _Context = (source.shards, parts, capacity, config, run.output)
    entries = run.map(_add_part, range(parts), context, name=_part_name, phase="add", work=True, total=ngrams.documents)
    files = [file for entry in entries for file in entry.files]
    run.once(
        "join",
        lambda: _join_parts(config, source.fingerprint, documents=ngrams.documents, files=files, output=run.output),
    )


def _check_memory(config: OverlapIndexConfig, capacity: int, run: StageRun) -> None:
    size = filter_bytes(capacity, config.error_rate)
    needs = (
        f"a pybloom-live filter for {capacity:,} n-grams at an error rate of {config.error_rate:g} takes "
        f"{format_bytes(size)} in each worker"
    )
    if size > config.memory_limit_mb * 1e6:
        raise WebtextError(
            f"overlap-index: {needs}, more than --memory-limit-mb {config.memory_limit_mb}; raise the limit and use "
            "fewer --workers, raise --error-rate, or omit --filter: a blocked filter is built in parts"
        )
    run.note(f"{needs}, and up to {_PARTS} times that on disk while it is built")


def _part_name(part: int) -> str:
    return f"part-{part:05d}"


def _add_part(part: int, context: _Context) -> TaskResult:
    from pybloom_live import BloomFilter

    documents, parts, capacity, config, output = context
    bloom = BloomFilter(capacity, config.error_rate)
    for shard in documents[len(documents) * part // parts : len(documents) * (part + 1) // parts]:
        for batch in inputs.read_documents(shard, Drops()):
            for text in batch.column("text").to_pylist():
                for _, ngram in text_ngrams(text, config.ngram, config.normalization):
                    # The library also counts repetitions and refuses more than its capacity.
                    bloom.count = 0
                    bloom.add(ngram, skip_check=True)
                progress.advance()
    bloom.count = 0
    return TaskResult(files=(_write_filter(bloom, output, storage.join(WORK, f"{_part_name(part)}.bloom")),))


def _join_parts(
    config: OverlapIndexConfig, fingerprint: str, documents: int, files: Sequence[FileEntry], output: str
) -> TaskResult:
    bloom = read_pybloom(storage.join(output, files[0].name))
    for file in files[1:]:
        _add_bits(bloom, storage.join(output, file.name))
    bloom.count = estimated_items(bloom)
    description = {
        "format": PYBLOOM_LIVE,
        "n": config.ngram,
        "normalisation": describe(config.normalization),
        **dataclasses.asdict(config.normalization),
        "error_rate": config.error_rate,
        "error_bound": false_positive_rate(bloom),
        "fill": fill(bloom),
        "capacity": bloom.capacity,
        "items": bloom.count,
        "hashes": bloom.num_slices,
        "bits": bloom.num_bits,
        "documents": documents,
        "corpus": fingerprint,
        "corpora": [fingerprint],
    }
    entries = (_write_filter(bloom, output, INDEX), write_description(description, output))
    return TaskResult(counts={"distinct_ngrams_estimated": bloom.count}, files=entries)


def _add_bits(bloom: Any, path: str) -> None:
    """Set the bits that are set in the filter of a file, a piece at a time."""
    bits = np.frombuffer(bloom.bitarray, dtype=np.uint8)
    with storage.open_read(path) as stream:
        stream.seek(storage.size_bytes(path) - len(bits))
        position = 0
        while block := stream.read(_READ_BYTES):
            bits[position : position + len(block)] |= np.frombuffer(block, dtype=np.uint8)
            position += len(block)


def _write_filter(bloom: Any, output: str, name: str) -> FileEntry:
    with storage.atomic_write(storage.join(output, name)) as stream:
        bloom.tofile(stream)
    return FileEntry(name, stream.size_bytes, stream.checksum)
