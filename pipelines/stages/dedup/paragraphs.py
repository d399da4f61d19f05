"""Paragraphs that occur in many documents: counted before the signatures, and removed wherever texts are read.

A paragraph is a line of text; two are equal if their lower-cased words are. CCNet and dolma do the same.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.kernels.compilation import as_read_only, kernel
from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.signing import SHINGLING
from pipelines.algorithms.ngrams.hashing import word_hashes
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import read_bucket
from pipelines.records.drops import Drops
from pipelines.records.schemas import make_schema
from pipelines.stages.dedup.documents import PARAGRAPHS, Corpus, SourceShard, buckets_of, part_of, work_name

PARAGRAPH_SCHEMA = make_schema(paragraph="string", documents="int64")
_COUNT_SCHEMA = pa.schema([("hash", pa.uint64()), ("documents", pa.int64()), ("shard", pa.int64())])
_FREQUENT = storage.join(WORK, "frequent-paragraphs.npy")
# A frequent paragraph; `shard` is the first shard in which it occurs, whose task lists its text.
_FREQUENT_TYPE = np.dtype([("hash", np.uint64), ("documents", np.int64), ("shard", np.int64)])


class Paragraphs(NamedTuple):
    """The paragraphs with enough words, in order: hash, number of the text, start and end in the bytes."""

    hashes: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def find_paragraphs(texts: pa.StringArray, min_words: int) -> Paragraphs:
    """Return the paragraphs of texts; their ends include the end of the line."""
    data, text_starts = text_arrays(texts)
    first, last = int(text_starts[0]), int(text_starts[-1])
    line_ends = first + 1 + np.flatnonzero(data[first:last] == ord("\n"))
    bounds = np.union1d(text_starts.astype(np.int64), line_ends)
    words = word_hashes(data, bounds, SHINGLING)
    hashes = np.zeros(len(bounds) - 1, np.uint64)
    _hash_lines(as_read_only(words.hashes), as_read_only(words.documents), hashes)
    chosen = np.flatnonzero(np.diff(words.documents) >= max(1, min_words))
    # The last of several texts that begin at the same byte: the others are empty.
    owners = np.searchsorted(text_starts, bounds[chosen], side="right") - 1
    return Paragraphs(mix(hashes[chosen]), owners, bounds[chosen], bounds[chosen + 1])


@kernel
def _hash_lines(words: Any, starts: Any, hashes: Any) -> None:
    for line in range(len(hashes)):
        for word in range(starts[line], starts[line + 1]):
            hashes[line] = hashes[line] * STEP + words[word]


def count_paragraphs(shard: SourceShard, corpus: Corpus) -> TaskResult:
    """Write in how many documents of a shard each paragraph occurs, shuffled by its hash."""
    distinct = [np.empty(0, np.uint64)]
    for batch in inputs.read_documents(shard.require_documents(), Drops()):
        paragraphs = find_paragraphs(batch.column("text"), corpus.config.min_paragraph_words)
        pairs = np.unique(np.rec.fromarrays((paragraphs.texts, paragraphs.hashes)))
        distinct.append(pairs["f1"])
        progress.advance(batch.num_rows)
    hashes, documents = np.unique(np.concatenate(distinct), return_counts=True)
    columns = (hashes, documents, np.full(len(hashes), shard.index))
    entry = corpus.write_buckets("paragraphs", shard.index, _COUNT_SCHEMA, columns, buckets_of(hashes, corpus.buckets))
    return TaskResult(files=(entry,))


def sum_paragraphs(part: int, corpus: Corpus) -> TaskResult:
    """Write the paragraphs of a part that occur in more than a number of documents."""
    paths = corpus.paths("paragraphs", "buckets", corpus.own_shards)
    buckets = part_of(part, corpus.paragraph_parts, corpus.buckets)
    counts = pa.Table.from_batches(read_bucket(paths, _COUNT_SCHEMA, buckets), _COUNT_SCHEMA)
    sums = counts.group_by("hash").aggregate([("documents", "sum"), ("shard", "min")])
    sums = sums.filter(pc.greater(sums["documents_sum"], corpus.config.paragraphs))
    columns = [sums[name].to_numpy() for name in ("hash", "documents_sum", "shard_min")]
    progress.advance()
    return TaskResult(files=(corpus.write_array("frequent", part, np.rec.fromarrays(columns, _FREQUENT_TYPE)),))


def join_frequent(corpus: Corpus) -> TaskResult:
    """Write the frequent paragraphs of all parts, by hash; memory: 24 bytes per paragraph."""
    frequent = np.concatenate([corpus.read_array("frequent", part) for part in range(corpus.paragraph_parts)])
    return TaskResult(files=(shards.write_array(corpus.output, _FREQUENT, frequent[np.argsort(frequent["hash"])]),))


class ParagraphRemover:
    """Removes frequent paragraphs; does nothing if `paragraphs` is None, or for a shard of an earlier corpus."""

    def __init__(self, shard: SourceShard, corpus: Corpus) -> None:
        self._corpus, self._shard = corpus, shard.index
        self._frequent = None
        if corpus.config.paragraphs is not None and not shard.is_earlier:
            self._frequent = storage.read_array(storage.join(corpus.output, _FREQUENT))
        # Text and number of documents of the removed paragraphs that first occur in this shard.
        self.examples: dict[int, tuple[str, int]] = {}
        self.removed = self.changed = 0

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return documents without frequent paragraphs, and which of them have no other text."""
        is_emptied = np.zeros(batch.num_rows, bool)
        if self._frequent is None or not len(self._frequent) or not batch.num_rows:
            return batch, is_emptied
        texts = batch.column("text")
        paragraphs = find_paragraphs(texts, self._corpus.config.min_paragraph_words)
        places = np.searchsorted(self._frequent["hash"], paragraphs.hashes)
        places[places == len(self._frequent)] = 0
        removed = np.flatnonzero(self._frequent["hash"][places] == paragraphs.hashes)
        if not len(removed):
            return batch, is_emptied
        data, text_starts = text_arrays(texts)
        cleaned = texts.to_pylist()
        for row, lines in itertools.groupby(removed.tolist(), key=lambda line: int(paragraphs.texts[line])):
            spans = []
            for line in lines:
                start, end = int(paragraphs.starts[line]), int(paragraphs.ends[line])
                spans.append((start, end))
                hash, documents, shard = self._frequent[places[line]].tolist()
                if shard == self._shard and hash not in self.examples:
                    self.examples[hash] = data[start:end].tobytes().decode().strip(), documents
            cleaned[row] = _without(data, int(text_starts[row]), int(text_starts[row + 1]), spans)
            is_emptied[row] = not cleaned[row].strip()
            self.changed += 1
        self.removed += len(removed)
        column = batch.schema.get_field_index("text")
        return batch.set_column(column, batch.schema.field(column), pa.array(cleaned, texts.type)), is_emptied

    def write_examples(self) -> FileEntry:
        """Write the paragraphs that were removed and first occur in this shard."""
        name = work_name("examples", self._shard, "parquet")
        with shards.write_shard(self._corpus.output, name, PARAGRAPH_SCHEMA) as written:
            for paragraph, documents in self.examples.values():
                written.write({"paragraph": paragraph, "documents": documents})
        return written.entry


def _without(data: npt.NDArray[np.uint8], start: int, end: int, spans: list[tuple[int, int]]) -> str:
    """Return the text of a range of bytes without spans, and without the blank lines that would then be adjacent."""
    text = ""
    for removed, resumed in [*spans, (end, end)]:
        kept = data[start:removed].tobytes().decode()
        if not text or text.endswith("\n\n"):
            kept = kept.lstrip("\n")
        text += kept
        start = resumed
    return text.rstrip("\n") if spans[-1][1] == end else text


def write_paragraphs(corpus: Corpus) -> TaskResult:
    """Write `paragraphs.parquet`: the removed paragraphs with their number of documents, in the order of the input."""
    with shards.write_shard(corpus.output, PARAGRAPHS, PARAGRAPH_SCHEMA) as written:
        for path in corpus.paths("examples", "parquet", corpus.own_shards):
            for batch in shards.read_batches(path):
                written.write_batch(batch)
    return TaskResult(counts={"distinct_paragraphs": written.records}, files=(written.entry,))
