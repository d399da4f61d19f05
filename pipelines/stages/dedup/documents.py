"""The documents that are compared, and their records: rank, text hash and sketch, so that texts are not read again.

These are the documents of the input, and those of earlier corpora, which are read from their texts or from the
signatures that `--write-signatures` wrote. A document is identified by a number: its position among all documents,
first those of the input, then those of earlier corpora. Ids are not used, because an input may repeat them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, has_manifest, read_manifest
from pipelines.engine.stage import RunOptions
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.inputs import DocumentShard, InputFile
from pipelines.records.schemas import make_schema
from pipelines.stages.dedup.config import DedupConfig

Numbers = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

SIGNATURES = "signatures"
TABLES = CLUSTERS, PARAGRAPHS = "clusters.parquet", "paragraphs.parquet"
_SETTINGS = b"minhash"
# Documents without a score or date rank last: no score is lower, and no date is later.
NO_SCORE, NO_DATE = -math.inf, (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class SourceShard:
    """The documents of one task, and the file with their signatures if they are signed.

    Without `documents`, which may be deleted once they are signed, their shingles are unknown.
    """

    index: int
    documents: DocumentShard | None
    signatures: InputFile | None = None
    is_earlier: bool = False

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"documents-{self.index:05d}"

    def require_documents(self) -> DocumentShard:
        """Return the documents of a shard that has them, as all shards of the input do."""
        assert self.documents is not None
        return self.documents

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The files that the task signs; the texts of signed documents may be gone in a run that resumes."""
        return (self.signatures,) if self.signatures else self.require_documents().files


def open_earlier(
    folders: Sequence[str], config: DedupConfig, first: int, options: RunOptions
) -> tuple[list[SourceShard], list[str]]:
    """Return the shards of earlier corpora, numbered from `first`, and the fingerprint of each corpus."""
    earlier: list[SourceShard] = []
    fingerprints = []
    for folder in folders:
        stage = inputs.StageFolder(folder, read_manifest(folder)) if has_manifest(folder) else None
        if stage and (files := stage.files(f"{SIGNATURES}-", ".parquet")):
            fingerprints.append(stage.manifest.fingerprint())
            for signatures, texts in zip(files, stage.files("documents-", ".parquet"), strict=True):
                _check_settings(signatures, config)
                number = first + len(earlier)
                # Only the signatures may have been kept.
                documents = DocumentShard(number, (texts,)) if storage.exists(texts.path) else None
                earlier.append(SourceShard(number, documents, signatures, is_earlier=True))
            continue
        source = inputs.open_configured(folder, config, options)
        fingerprints.append(source.fingerprint)
        for shard in source.shards:
            earlier.append(SourceShard(first + len(earlier), shard, is_earlier=True))
    return earlier, fingerprints


def signature_schema(config: DedupConfig) -> pa.Schema:
    """Return the schema of `signatures-NNNNN.parquet`, with the settings of MinHash as metadata."""
    settings = {"ngram": config.ngram, "num_perm": config.num_perm, "seed": config.minhash_seed, "scheme": "affine32"}
    schema = make_schema(
        id="string", score="float64?", created_utc="int64?", text_hash=pa.binary(16), has_words="bool",
        minhash=pa.list_(pa.uint32(), config.num_perm),
    )  # fmt: skip
    return schema.with_metadata({_SETTINGS: json.dumps(settings, sort_keys=True).encode()})


def _check_settings(file: InputFile, config: DedupConfig) -> None:
    with shards.open_stream(file.path) as stream:
        metadata = shards.open_parquet(stream, file.path).schema_arrow.metadata or {}
    expected = (signature_schema(config).metadata or {})[_SETTINGS]
    if (settings := metadata.get(_SETTINGS)) != expected:
        raise InputError(
            f"{file.path}: has signatures of {(settings or b'unknown settings').decode()}, not of {expected.decode()}; "
            "use the same options, or name the documents instead of the folder"
        )


def work_name(noun: str, index: int, suffix: str) -> str:
    """Return the name of a work file of a shard or a bucket."""
    return storage.join(WORK, shards.shard_name(noun, index, suffix))


def record_type(num_perm: int) -> np.dtype[Any]:
    """Return the type of a record.

    `sketch`: the low byte of each MinHash value (their number rounded down to a multiple of 8), which estimates the
    similarity of two documents in a quarter of the space; `id_end`: the end of the id in the array of ids.
    """
    numbers = [("score", np.float64), ("created", np.int64), ("id_end", np.int64)]
    return np.dtype(
        [("sketch", np.uint8, (num_perm // 8 * 8,)), ("text_hash", np.uint64, (2,)), ("has_words", np.bool_), *numbers]
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The context of all tasks, completed from phase to phase.

    The first `own_shards` shards are the input, the others those of earlier corpora. `starts`, known after the
    signatures, are the number of the first document of each shard, and the total.

    `buckets` is the number of buckets of paragraphs, keys and pairs. A task reads as many of them as fit into memory:
    `paragraph_parts` and `key_parts` tasks read paragraphs and keys, `pair_parts` tasks the pairs of each round of the
    comparison (see `stage`), and `groups` tasks the near pairs, by shards.
    """

    config: DedupConfig
    output: str
    own_shards: int
    buckets: int
    starts: tuple[int, ...] = ()
    paragraph_parts: int = 1
    key_parts: int = 1
    pair_parts: tuple[int, ...] = ()
    groups: int = 1

    @property
    def round(self) -> int:
        """The number of the latest round of the comparison, -1 before the first one."""
        return len(self.pair_parts) - 1

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.starts[-1]

    @property
    def own_documents(self) -> int:
        """The number of documents of the input."""
        return self.starts[self.own_shards]

    def shards_of(self, numbers: Numbers) -> Numbers:
        """Return the shard of each document."""
        return np.searchsorted(np.array(self.starts), numbers, side="right") - 1

    def by_shard(self, numbers: Numbers, *paths: Sequence[str]) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield shards, the rows of their documents, and the positions of these in `numbers`.

        `paths` are files per shard, which will be memory-mapped.
        """
        owners = self.shards_of(numbers)
        order = np.argsort(owners.astype(np.int32), kind="stable")
        shards, firsts = np.unique(owners[order], return_index=True)
        storage.fetch_copies([files[shard] for files in paths for shard in shards.tolist()])
        for shard, places in zip(shards.tolist(), np.split(order, firsts[1:]), strict=False):  # one, empty, if no shard
            yield shard, numbers[places] - self.starts[shard], places

    def edge_paths(self) -> list[str]:
        """Return the files of near pairs of all rounds so far."""
        rounds = enumerate(self.pair_parts)
        return [path for number, parts in rounds for path in self.paths(f"edges-{number}", "buckets", parts)]

    def path(self, noun: str, index: int, suffix: str) -> str:
        """Return the path of a work file of a shard, a part or a round."""
        return storage.join(self.output, work_name(noun, index, suffix))

    def paths(self, noun: str, suffix: str, count: int | None = None) -> list[str]:
        """Return the work files of a noun, one per shard or `count`."""
        return [self.path(noun, index, suffix) for index in range(len(self.starts) - 1 if count is None else count)]

    def write_array(self, noun: str, index: int, array: Column) -> FileEntry:
        """Write an array as a work file."""
        return shards.write_array(self.output, work_name(noun, index, "npy"), array)

    def read_array(self, noun: str, index: int) -> Column:
        """Return the array of a work file, memory-mapped."""
        return storage.read_array(self.path(noun, index, "npy"))

    def write_buckets(
        self, noun: str, index: int, schema: pa.Schema, columns: Sequence[Any], buckets: Sequence[int] | Column
    ) -> FileEntry:
        """Write rows as a work file with buckets."""
        name = work_name(noun, index, "buckets")
        with write_buckets(storage.join(self.output, name), schema) as written:
            written.write(pa.RecordBatch.from_arrays(list(columns), schema=schema), buckets)
        return written.entry(name)


def count_documents(count: int, output: str) -> tuple[int, ...]:
    """Return the number of the first document of each of `count` shards, and the total."""
    paths = [storage.join(output, work_name("records", index, "npy")) for index in range(count)]
    lengths = storage.map_files(_array_length, paths)
    return tuple(itertools.accumulate(lengths, initial=0))


def _array_length(path: str) -> int:
    """Return the length of an array from its header; mapping the array would copy a remote file."""
    with storage.open_read(path) as stream:
        np.lib.format.read_magic(stream)
        return int(np.lib.format.read_array_header_1_0(stream)[0][0])


def part_of(part: int, parts: int, count: int) -> range:
    """Return the range of `count` buckets or shards that one of several tasks reads."""
    return range(count * part // parts, count * (part + 1) // parts)


class Records:
    """The records of all documents, memory-mapped one shard at a time."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._records, self._ids = corpus.paths("records", "npy"), corpus.paths("ids", "npy")

    def take(self, numbers: Numbers, field: str) -> npt.NDArray[Any]:
        """Return a field of the records of documents."""
        column = storage.read_array(self._records[0])[field]
        values = np.empty((len(numbers), *column.shape[1:]), column.dtype)
        for shard, rows, places in self._corpus.by_shard(numbers, self._records):
            values[places] = storage.read_array(self._records[shard])[field][rows]
        return values

    def ids(self, numbers: Numbers) -> list[str]:
        """Return the ids of documents."""
        ids = [""] * len(numbers)
        for shard, rows, places in self._corpus.by_shard(numbers, self._records, self._ids):
            ends, data = storage.read_array(self._records[shard])["id_end"], storage.read_array(self._ids[shard])
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                ids[place] = data[ends[row - 1] if row else 0 : ends[row]].tobytes().decode()
        return ids

    def ranks(self, numbers: Numbers) -> Numbers:
        """Return the rank of each document among these, 0 for the best; it depends on the documents alone.

        Better are documents of earlier corpora, then higher scores, earlier creation, smaller ids.
        """
        unique, places = np.unique(numbers, return_inverse=True)
        keys = (self.take(unique, "created"), -self.take(unique, "score"), unique < self._corpus.own_documents)
        order = np.lexsort(keys)
        is_tied = np.zeros(len(unique), bool)
        same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
        is_tied[order[1:][same]] = is_tied[order[:-1][same]] = True
        id_ranks = np.zeros(len(unique), np.int64)
        id_ranks[is_tied] = pc.rank(pa.array(self.ids(unique[is_tied]), pa.string()), tiebreaker="min").to_numpy()
        # Documents with equal ids are ranked by the hashes of their texts, and equal texts by their order in the input.
        texts = self.take(unique, "text_hash")
        ranks = np.empty(len(unique), np.int64)
        ranks[np.lexsort((unique, texts[:, 1], texts[:, 0], id_ranks, *keys))] = np.arange(len(unique))
        return ranks[places]

    def estimate(self, pairs: Numbers) -> npt.NDArray[np.float64]:
        """Return the estimated similarity of pairs, shape (2, pairs); the error is about 0.04 with 128 values."""
        from pipelines.algorithms.minhash.pairing import estimated_jaccard  # deferred: numba

        left, right = (self.take(numbers, "sketch") for numbers in pairs)
        return estimated_jaccard(np.count_nonzero(left == right, axis=1), left.shape[1])


def read_columns(paths: Sequence[str], schema: pa.Schema, bucket: int | range | None) -> list[npt.NDArray[Any]]:
    """Return the columns of buckets (None: all) of all files, concatenated; columns are numbers."""
    return [column.to_numpy() for column in pa.Table.from_batches(read_bucket(paths, schema, bucket), schema).columns]


def buckets_of(hashes: npt.NDArray[np.uint64], buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row by its hash."""
    return (hashes % np.uint64(buckets)).astype(np.int32)
