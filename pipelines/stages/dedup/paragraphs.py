"""Paragraphs that occur in many documents: counted before the signatures, and removed wherever texts are read.

A paragraph is a line of text; two are equal if their lower-cased words are. CCNet and dolma remove them alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.kernels.compilation import as_read_only, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.shingles import SHINGLING
from pipelines.algorithms.ngrams.hashing import word_hashes
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import write_buckets
from pipelines.records.drops import Drops
from pipelines.records.text_columns import text_arrays
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.records import bucket_batch, buckets_of, part_of, read_columns, work_name
from pipelines.stages.dedup.sources import SourceShard

PARAGRAPHS = "paragraphs.parquet"
PARAGRAPH_SCHEMA = pa.schema(
    [pa.field("paragraph", pa.string(), nullable=False), pa.field("documents", pa.int64(), nullable=False)]
)
_COUNT_SCHEMA = pa.schema([pa.field("hash", pa.uint64()), pa.field("documents", pa.int64())])
_FREQUENT = storage.join(WORK, "frequent-paragraphs.npy")
# A frequent paragraph; `shard` is the first one in which it occurs, whose task lists its text.
_FREQUENT_TYPE = np.dtype([("hash", np.uint64), ("documents", np.int64), ("shard", np.int64)])
_NEW_LINE = 10


class Paragraphs(NamedTuple):
    """The paragraphs of at least a number of words in texts: hash, text, and bytes in the column, in order."""

    hashes: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def find_paragraphs(texts: pa.StringArray, min_words: int) -> Paragraphs:
    """Return the paragraphs of texts; their ends include the end of the line."""
    data, text_starts = text_arrays(texts)
    first, last = int(text_starts[0]), int(text_starts[-1])
    line_ends = first + 1 + np.flatnonzero(data[first:last] == _NEW_LINE)
    bounds = np.union1d(text_starts.astype(np.int64), line_ends)
    words = word_hashes(data, bounds, SHINGLING)
    hashes = np.zeros(len(bounds) - 1, np.uint64)
    _hash_lines(as_read_only(words.hashes), as_read_only(words.documents), hashes)
    chosen = np.flatnonzero(np.diff(words.documents) >= max(1, min_words))
    # The last of several texts that begin there: the others are empty.
    owners = np.searchsorted(text_starts, bounds[chosen], side="right") - 1
    return Paragraphs(mix(hashes[chosen]), owners, bounds[chosen], bounds[chosen + 1])


@kernel
def _hash_lines(words: Any, starts: Any, hashes: Any) -> None:
    for line in range(len(hashes)):
        for word in range(starts[line], starts[line + 1]):
            hashes[line] = hashes[line] * STEP + words[word]


def count_paragraphs(shard: SourceShard, context: tuple[DedupConfig, int, str]) -> TaskResult:
    """Write in how many documents of a shard each paragraph occurs, shuffled by its hash."""
    config, buckets, output = context
    name = work_name("paragraphs", shard.index, "buckets")
    distinct = [np.empty(0, np.uint64)]
    for batch in inputs.read_documents(shard.require_documents(), Drops()):
        paragraphs = find_paragraphs(batch.column("text"), config.min_paragraph_words)
        pairs = np.unique(np.rec.fromarrays((paragraphs.texts, paragraphs.hashes)))
        distinct.append(pairs["f1"])
        progress.advance(batch.num_rows)
    hashes, documents = np.unique(np.concatenate(distinct), return_counts=True)
    with write_buckets(storage.join(output, name), _COUNT_SCHEMA) as written:
        batch = bucket_batch(_COUNT_SCHEMA, hashes, documents)
        written.writer.write(batch, buckets_of(hashes, buckets))
    return TaskResult(files=(written.entry(name),))


def sum_paragraphs(part: int, context: tuple[int, int, int, int, str]) -> TaskResult:
    """Write the paragraphs of a part that occur in more than a number of documents."""
    limit, own_shards, parts, buckets, output = context
    counts = [np.empty(0, _FREQUENT_TYPE)]
    for shard in range(own_shards):
        path = storage.join(output, work_name("paragraphs", shard, "buckets"))
        hashes, documents = read_columns([path], _COUNT_SCHEMA, part_of(part, parts, buckets))
        counts.append(np.empty(len(hashes), _FREQUENT_TYPE))
        counts[-1]["hash"], counts[-1]["documents"], counts[-1]["shard"] = hashes, documents, shard
    rows = np.concatenate(counts)
    rows = rows[np.argsort(rows["hash"], kind="stable")]
    frequent = np.empty(0, _FREQUENT_TYPE)
    if len(rows):
        firsts = np.flatnonzero(np.concatenate(([True], rows["hash"][1:] != rows["hash"][:-1])))
        totals = np.add.reduceat(rows["documents"], firsts)
        rows = rows[firsts]
        rows["documents"] = totals
        frequent = rows[totals > limit]
    progress.advance()
    return TaskResult(files=(shards.write_array(output, work_name("frequent", part, "npy"), frequent),))


def join_frequent(parts: int, output: str) -> TaskResult:
    """Write the frequent paragraphs of all parts, by hash; memory: 24 bytes for each."""
    paths = [storage.join(output, work_name("frequent", part, "npy")) for part in range(parts)]
    frequent = np.concatenate([np.empty(0, _FREQUENT_TYPE), *map(storage.read_array, paths)])
    return TaskResult(files=(shards.write_array(output, _FREQUENT, frequent[np.argsort(frequent["hash"])]),))


class ParagraphRemover:
    """Removes frequent paragraphs; does nothing if they stay (`paragraphs` is None) or a shard is not of the input."""

    def __init__(self, shard: SourceShard, config: DedupConfig, output: str) -> None:
        self._min_words = config.min_paragraph_words
        self._shard = shard.index
        self._frequent = None
        if config.paragraphs is not None and not shard.is_earlier:
            self._frequent = storage.read_array(storage.join(output, _FREQUENT))
        # The text and the number of documents of those that first occur in this shard.
        self.examples: dict[int, tuple[str, int]] = {}
        self.removed = self.changed = 0

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return documents without these paragraphs, and which of them have no other text."""
        is_emptied = np.zeros(batch.num_rows, bool)
        if self._frequent is None or not len(self._frequent) or not batch.num_rows:
            return batch, is_emptied
        texts = batch.column("text")
        paragraphs = find_paragraphs(texts, self._min_words)
        places = np.searchsorted(self._frequent["hash"], paragraphs.hashes)
        places[places == len(self._frequent)] = 0
        removed = np.flatnonzero(self._frequent["hash"][places] == paragraphs.hashes)
        if not len(removed):
            return batch, is_emptied
        data, text_starts = text_arrays(texts)
        cleaned = texts.to_pylist()
        for first, last in _runs(paragraphs.texts[removed]):
            row = int(paragraphs.texts[removed[first]])
            spans = [(int(paragraphs.starts[line]), int(paragraphs.ends[line])) for line in removed[first:last]]
            for line, (start, end) in zip(removed[first:last].tolist(), spans, strict=True):
                self._list(self._frequent[places[line]], data[start:end])
            cleaned[row] = _without(data, int(text_starts[row]), int(text_starts[row + 1]), spans)
            is_emptied[row] = not cleaned[row].strip()
        self.removed += len(removed)
        self.changed += len(np.unique(paragraphs.texts[removed]))
        column = batch.schema.get_field_index("text")
        return batch.set_column(column, batch.schema.field(column), pa.array(cleaned, texts.type)), is_emptied

    def _list(self, frequent: Any, text: npt.NDArray[np.uint8]) -> None:
        if frequent["shard"] == self._shard and int(frequent["hash"]) not in self.examples:
            paragraph = text.tobytes().decode().strip()
            self.examples[int(frequent["hash"])] = paragraph, int(frequent["documents"])


def _runs(values: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield first and last place (exclusive) of each run of equal values."""
    bounds = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True]))).tolist()
    return itertools.pairwise(bounds)


def _without(data: npt.NDArray[np.uint8], start: int, end: int, spans: list[tuple[int, int]]) -> str:
    """Return the bytes from start to end without spans, and without the blank lines that would stand together then."""
    text = ""
    for removed, resumed in [*spans, (end, end)]:
        kept = data[start:removed].tobytes().decode()
        if not text or text.endswith("\n\n"):
            kept = kept.lstrip("\n")
        text += kept
        start = resumed
    return text.rstrip("\n") if spans[-1][1] == end else text


def write_examples(remover: ParagraphRemover, shard: int, output: str) -> FileEntry:
    """Write the paragraphs that were removed and first occur in a shard."""
    with shards.write_shard(output, work_name("examples", shard, "parquet"), PARAGRAPH_SCHEMA) as written:
        for paragraph, documents in remover.examples.values():
            written.writer.write({"paragraph": paragraph, "documents": documents})
    return written.entry


def write_paragraphs(own_shards: int, output: str) -> TaskResult:
    """Write `paragraphs.parquet`: what was removed and in how many documents it occurs, in the order of the input."""
    with shards.write_shard(output, PARAGRAPHS, PARAGRAPH_SCHEMA) as written:
        for shard in range(own_shards):
            for batch in shards.read_batches(storage.join(output, work_name("examples", shard, "parquet"))):
                written.writer.write_batch(batch)
    return TaskResult(counts={"distinct_paragraphs": written.writer.records}, files=(written.entry,))
