"""The index of a reference: every second 8-gram of its articles, and the first article with each.

Phase 1 reads the articles and distributes their n-grams over buckets, phase 2 turns each bucket into a part of the
index, so memory does not grow with the reference. The parts are memory-mapped when documents are compared with them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams import article_index
from pipelines.algorithms.ngrams.article_index import NONE, Articles, Hashes
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Shingling
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import StageRun, TaskResult, result_files
from pipelines.errors import InputError
from pipelines.records import input_paths, inputs, shards
from pipelines.records.buckets import bucket_part, write_buckets
from pipelines.records.document_filter import DropReason
from pipelines.records.drops import Drops
from pipelines.stages.remove_wikipedia.dumps import DumpPart, dump_parts, is_dump, read_articles

NGRAM = 8
# As in dedup, a character is a word in scripts without spaces.
_WORDS = Shingling()

_PHASE = "reference"
_SCHEMA = pa.schema([pa.field("hash", pa.uint64(), nullable=False), pa.field("article", pa.uint32(), nullable=False)])
_TITLES = pa.schema([pa.field("title", pa.string(), nullable=False)])
# Bytes of a reference per part: the part of 16 MB of text (bz2) has 15 MB.
_PART_BYTES = 4 << 20
_READ_BYTES = 4 << 20
# N-grams that are looked up at a time: ~26 bytes each, in addition to their hashes.
_SLICE_NGRAMS = 4 << 20


@dataclasses.dataclass(frozen=True)
class Reference:
    """An index on disk; `articles` is the number of articles that each task read, known after the first phase."""

    folder: str
    parts: int
    articles: tuple[int, ...] = ()

    def find(self, hashes: Hashes) -> Articles:
        """Return the first article with each n-gram, or NONE."""
        articles = np.full(len(hashes), NONE)
        for first in range(0, len(hashes), _SLICE_NGRAMS):
            parts = article_index.parts_of(hashes[first : first + _SLICE_NGRAMS], self.parts)
            order, ends = first + np.argsort(parts, kind="stable"), np.cumsum(np.bincount(parts, minlength=self.parts))
            for part, numbers in enumerate(np.split(order, ends[:-1])):
                if len(numbers):
                    # Mapped again for each slice: the pages of one part at a time count as memory of this process.
                    table = np.memmap(storage.mapped_path(storage.join(self.folder, _part_name(part))), "<u8", "r")
                    article_index.find_articles(table, hashes, numbers, articles)
        return articles

    def title(self, article: int) -> str:
        """Return the title of an article."""
        ends = np.cumsum(self.articles)
        shard = int(np.searchsorted(ends, article, side="right"))
        titles = _read_titles(storage.join(self.folder, _titles_name(shard)))
        return str(titles[article - int(ends[shard])].as_py())  # counted from the end

    def drop_reasons(self, texts: pa.StringArray, min_share: float) -> list[DropReason | None]:
        """Return the reason to drop each text with at least a share of its words in passages of the reference.

        The detail is this share and the title of the article with most of the text's n-grams.
        """
        hashes, starts, words = text_ngram_hashes(*text_arrays(texts), NGRAM, _WORDS)
        articles = self.find(hashes)
        counts = np.diff(words)
        # A text that is shorter than an n-gram is a single n-gram, which matches by chance.
        shares = np.where(
            counts < NGRAM, 0, article_index.covered_words(articles, starts, NGRAM) / np.maximum(1, counts)
        )
        reasons: list[DropReason | None] = [None] * len(texts)
        for row in np.flatnonzero(shares >= min_share).tolist():
            matches = articles[starts[row] : starts[row + 1]]
            numbers, matched = np.unique(matches[matches != NONE], return_counts=True)
            title = self.title(int(numbers[matched.argmax()]))
            reasons[row] = DropReason("wikipedia_content", f"{shares[row]:.3f} {title}")
        return reasons


@dataclasses.dataclass(frozen=True)
class ReferenceSource:
    """A reference: texts to index, with their size, or an earlier result with an index."""

    fingerprint: str
    shards: tuple[DumpPart | inputs.DocumentShard, ...] = ()
    size_bytes: int = 0
    stored: inputs.StageFolder | None = None

    def prepare(self, run: StageRun) -> Reference:
        """Write the index into the output folder, or verify the checksums of a stored one.

        Raises InputError if no article has an n-gram, DamagedShardError if a file of a stored index is damaged.
        """
        if self.stored:
            files = self.stored.files("reference-")
            read = [*files, *self.stored.files("titles-")]
            run.map(_verify, read, name=lambda file: file.name, phase="check", work=True, total=len(read), unit="files")
            entries = [entry for entry in self.stored.manifest.shards if entry.phase == _PHASE]
            return Reference(self.stored.path, len(files), _count_articles(entries))
        parts = min(article_index.MAX_PARTS, 1 << (self.size_bytes // _PART_BYTES).bit_length())
        reference = Reference(run.output, parts)
        items = list(enumerate(self.shards))
        entries = run.map(_spread_ngrams, items, reference, name=_shard_name, phase=_PHASE, work=True, unit="articles")
        if not any(entry.counts["reference_ngrams"] for entry in entries):
            raise InputError(f"--reference: no article has {NGRAM} words; use a dump of articles, or their texts")
        run.once("titles", lambda: result_files(entries))
        reference = dataclasses.replace(reference, articles=_count_articles(entries))
        run.map(_build_part, range(parts), reference, name=_part_name, phase="index", total=parts, unit="parts")
        return reference


def open_source(paths: Sequence[str]) -> ReferenceSource:
    """Open dumps of MediaWiki and documents in Parquet, JSONL or .txt; their order does not matter."""
    paths = sorted(input_paths.expand_globs(paths))
    dumps = [path for path in paths if is_dump(path) and not storage.is_folder(path)]
    texts = [path for path in paths if path not in dumps]
    input_paths.expand_paths(texts, (".xml", *input_paths.TEXT_SUFFIXES))  # raises for another type
    documents = [inputs.open_documents(texts)] if texts else []
    fingerprints = [inputs.fingerprint_files(dumps), *(source.fingerprint for source in documents)]
    return ReferenceSource(
        shards=(*dump_parts(dumps), *(shard for source in documents for shard in source.shards)),
        fingerprint=hashlib.sha256("\n".join(fingerprints).encode()).hexdigest(),
        size_bytes=sum(map(storage.size_bytes, dumps)) + sum(inputs.size_on_disk(source.files) for source in documents),
    )


def open_stored(folder: str, stage: str, version: int) -> ReferenceSource:
    """Open the index in a result of this stage; raise InputError if it has none or is of another version."""
    stored = inputs.open_stage(folder, (stage,))
    has_index, built = stored.files("reference-"), stored.manifest.identity.version
    if not has_index or built != version:
        problem = f"is of version {built}, not {version}" if has_index else "has no index of a reference"
        raise InputError(f"{folder}: {problem}; build one with `webtext {stage} --reference`")
    return ReferenceSource(stored.manifest.fingerprint(), stored=stored)


def _verify(file: inputs.InputFile) -> TaskResult:
    file.verify()
    progress.advance(1)
    return TaskResult()


def _shard_name(item: tuple[int, object]) -> str:
    return shards.shard_name("reference", item[0], "buckets")


def _part_name(part: int) -> str:
    return shards.shard_name("reference", part, "ngrams")


def _titles_name(shard: int) -> str:
    return shards.shard_name("titles", shard)


def _count_articles(entries: Sequence[ShardEntry]) -> tuple[int, ...]:
    return tuple(int(entry.counts["reference_articles"]) for entry in entries)


def _spread_ngrams(item: tuple[int, DumpPart | inputs.DocumentShard], reference: Reference) -> TaskResult:
    """Write the n-grams of a shard, with the numbers of their articles in it, into buckets; write the titles."""
    number, source = item
    counts: Counter[str] = Counter(reference_articles=0, reference_ngrams=0)
    name = storage.join(WORK, _shard_name(item))
    with (
        write_buckets(storage.join(reference.folder, name), _SCHEMA) as written,
        shards.write_shard(reference.folder, _titles_name(number), _TITLES) as titles,
    ):
        for batch in _read_batches(source, counts):
            hashes, starts, _ = text_ngram_hashes(*text_arrays(batch.column("text")), NGRAM, _WORDS)
            hashes, articles = article_index.sample_ngrams(hashes, starts)
            articles += np.uint32(counts["reference_articles"])
            rows = pa.RecordBatch.from_arrays([hashes, articles], schema=_SCHEMA)
            written.write(rows, article_index.parts_of(hashes, reference.parts))
            titles.write_batch(pa.RecordBatch.from_arrays([batch.column("title")], schema=_TITLES))
            counts.update(reference_articles=batch.num_rows, reference_ngrams=len(hashes))
            progress.advance(batch.num_rows)
    files = (written.entry(name), titles.entry)
    return TaskResult(counts=dict(sorted(counts.items())), files=files)


def _read_batches(source: DumpPart | inputs.DocumentShard, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Yield `title` and `text` of articles; count what is skipped."""
    if isinstance(source, DumpPart):
        for title, text in read_articles(source, counts):
            yield pa.RecordBatch.from_pydict({"title": [title], "text": [text]})
        return
    drops = Drops()
    for batch in inputs.read_documents(source, drops, batch_bytes=_READ_BYTES):
        ids = batch.column("id")
        titles = pc.coalesce(batch.column("title").cast(pa.string()), ids) if "title" in batch.schema.names else ids
        yield pa.RecordBatch.from_arrays([titles, batch.column("text")], names=["title", "text"])
    counts.update({f"reference_{reason}": count for reason, count in drops.counts.items()})


def _build_part(part: int, reference: Reference) -> TaskResult:
    names = [storage.join(WORK, _shard_name((number, None))) for number in range(len(reference.articles))]
    files = [bucket_part(storage.join(reference.folder, name), _SCHEMA, part) for name in names]
    table = article_index.new_table(sum(file.rows for file in files))
    first_article = 0
    for file, count in zip(files, reference.articles, strict=True):
        for batch in file.batches():
            articles = batch.column("article").to_numpy() + np.uint32(first_article)
            article_index.add_ngrams(table, batch.column("hash").to_numpy(), articles)
        first_article += count
    with storage.atomic_write(storage.join(reference.folder, _part_name(part))) as stream:
        stream.write(table.astype("<u8", copy=False).data)
    progress.advance(1)
    counts = {"reference_distinct_ngrams": int((table != article_index.EMPTY).sum())}
    return TaskResult(counts=counts, files=(FileEntry(_part_name(part), stream.size_bytes, stream.checksum),))


@functools.lru_cache(maxsize=16)
def _read_titles(path: str) -> pa.ChunkedArray:
    return pa.Table.from_batches(shards.read_batches(path)).column("title")
