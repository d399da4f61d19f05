"""The filter of the library pybloom-live: a file for other programs, to which n-grams are added as words."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from pipelines import progress, storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import build_index, ngram_texts
from pipelines.algorithms.ngrams.words import describe
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import WebtextError
from pipelines.format import format_bytes
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.ngram_filter import DESCRIPTION, INDEX, PYBLOOM_LIVE
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.parts import NgramCounts

if TYPE_CHECKING:
    from pybloom_live import BloomFilter

# Each part is a whole filter on disk, so there are few; their number does not depend on the workers, so that equal
# inputs give equal parts.
_PARTS = 8


@dataclasses.dataclass(frozen=True)
class _Source:
    """What the parts are built from: their number, the documents, and the number of n-grams the filter is sized for."""

    parts: int
    documents: list[inputs.DocumentShard]
    capacity: int
    config: OverlapIndexConfig
    output: str


def write_pybloom_filter(
    config: OverlapIndexConfig, source: inputs.DocumentInput, ngrams: NgramCounts, capacity: int, run: StageRun
) -> None:
    """Write `index.bloom`, a file of pybloom-live, and `index.json`.

    Raises WebtextError if the filter exceeds the memory limit: each worker holds all of it.
    """
    size = round(capacity * -math.log(config.error_rate) / math.log(2) ** 2 / 8)
    needs = (
        f"a pybloom-live filter for {capacity:,} n-grams at an error rate of {config.error_rate:g} takes "
        f"{format_bytes(size)} in each worker"
    )
    if size > config.memory_limit_mib * 1e6:
        raise WebtextError(
            f"overlap-index: {needs}, more than --memory-limit-mib {config.memory_limit_mib}; raise the limit and use "
            "fewer --workers, raise --error-rate, or omit --filter: a blocked filter is built in parts"
        )
    run.note(f"{needs}, and up to {_PARTS} times that on disk while it is built")
    documents = source.undivided
    context = _Source(min(_PARTS, len(documents)), documents, capacity, config, run.output)
    parts = range(context.parts)
    entries = run.map(
        _add_part, parts, context, name=lambda part: f"part-{part:05d}", phase="add", work=True, total=ngrams.documents
    )

    def join() -> TaskResult:
        first, *others = [storage.join(run.output, file.name) for entry in entries for file in entry.files]
        bloom = _read_filter(first)
        for path in others:
            bloom.bitarray |= _read_filter(path).bitarray  # the library's union copies both filters
        # The library counts repeated n-grams, too.
        bloom.count = min(capacity, ngrams.distinct)
        description = {
            "format": PYBLOOM_LIVE,
            "n": config.ngram,
            "normalisation": describe(config.normalization),
            **dataclasses.asdict(config.normalization),
            "error_rate": config.error_rate,
            "fill": bloom.bitarray.count() / bloom.num_bits,
            "capacity": bloom.capacity,
            "items": bloom.count,
            "hashes": bloom.num_slices,
            "bits": bloom.num_bits,
            "documents": ngrams.documents,
            "corpus": source.fingerprint,
            "corpora": [source.fingerprint],
        }
        index_json = shards.write_file(run.output, DESCRIPTION, storage.json_bytes(description))
        files = (_write_filter(bloom, run.output, INDEX), index_json)
        return TaskResult(counts={"estimated_distinct_ngrams": bloom.count}, files=files)

    run.once("join", join)


def _add_part(part: int, source: _Source) -> TaskResult:
    from pybloom_live import BloomFilter

    bloom = BloomFilter(source.capacity, source.config.error_rate)
    count = len(source.documents)
    for shard in source.documents[count * part // source.parts : count * (part + 1) // source.parts]:
        for batch in inputs.read_documents(shard, Drops()):
            texts = text_arrays(batch.column("text"))
            index, _ = build_index([texts], source.config.ngram, source.config.normalization)
            for ngram in ngram_texts(index, np.arange(len(index.arrays.hashes))).to_pylist():
                # The library refuses more than its capacity, even if they are repetitions.
                bloom.count = 0
                bloom.add(ngram, skip_check=True)
            progress.advance(batch.num_rows)
    return TaskResult(files=(_write_filter(bloom, source.output, storage.join(WORK, f"part-{part:05d}.bloom")),))


def _read_filter(path: str) -> BloomFilter:
    from pybloom_live import BloomFilter

    with storage.open_read(path) as stream:
        return BloomFilter.fromfile(stream)


def _write_filter(bloom: BloomFilter, output: str, name: str) -> FileEntry:
    with storage.atomic_write(storage.join(output, name)) as stream:
        bloom.tofile(stream)
    return FileEntry(name, stream.size_bytes, stream.checksum)
