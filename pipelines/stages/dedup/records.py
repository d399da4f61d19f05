"""What later phases know of a document without reading it again: its rank, its text hash, a sketch of its signature.

A document is a number: its position among all documents, first those of the input, then those of earlier corpora. Ids
do not serve, because foreign inputs may repeat them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.minhash.pairing import estimated_jaccard
from pipelines.engine.journal import WORK
from pipelines.records import shards
from pipelines.records.buckets import read_bucket

Numbers = npt.NDArray[np.int64]

# They rank last: no score is lower, and no date is later.
NO_SCORE, NO_DATE = -math.inf, (1 << 63) - 1


def work_name(noun: str, index: int, suffix: str) -> str:
    """Return the name of a work file of a shard or a bucket."""
    return storage.join(WORK, shards.shard_name(noun, index, suffix))


def record_type(num_perm: int) -> np.dtype[Any]:
    """Return the type of a record.

    `sketch`: the low byte of each MinHash value (of as many as are compared in words of 8), which estimates the
    similarity of two documents at a quarter of the space; `id_end`: where the id ends among those of the shard.
    """
    numbers = [("score", np.float64), ("created", np.int64), ("id_end", np.int64)]
    return np.dtype(
        [("sketch", np.uint8, (num_perm // 8 * 8,)), ("text_hash", np.uint64, (2,)), ("has_words", np.bool_), *numbers]
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """All documents: `starts` are the numbers of the first document of each shard, and last of all documents.

    The documents of the first `own_shards` are the input, the others are those of earlier corpora.

    `buckets` is the number of buckets of keys and pairs. A task reads as many of them as it can hold: `key_parts` is
    the number of tasks that read the keys, `pair_parts` of those that read pairs in each round of the comparison, see
    `stage`, and `groups` of those that read near pairs, by shards.
    """

    output: str
    starts: tuple[int, ...]
    own_shards: int
    buckets: int
    key_parts: int
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
        """Yield shards, the rows of their documents, and the places of these in `numbers`.

        `paths` have a file per shard, which will be mapped.
        """
        owners = self.shards_of(numbers)
        shards = np.unique(owners).tolist()
        storage.fetch_copies([files[shard] for files in paths for shard in shards])
        for shard in shards:
            places = np.flatnonzero(owners == shard)
            yield shard, numbers[places] - self.starts[shard], places

    def edge_paths(self) -> list[str]:
        """Return the files of near pairs of all rounds so far."""
        rounds = enumerate(self.pair_parts)
        return [path for number, parts in rounds for path in self.paths(f"edges-{number}", "buckets", parts)]

    def paths(self, noun: str, suffix: str, count: int | None = None) -> list[str]:
        """Return the work files of a noun, one per shard or `count`."""
        indexes = range(len(self.starts) - 1 if count is None else count)
        return [storage.join(self.output, work_name(noun, index, suffix)) for index in indexes]


def count_documents(count: int, output: str) -> tuple[int, ...]:
    """Return the numbers of the first document of each of `count` shards, and last of all documents."""
    paths = [storage.join(output, work_name("records", index, "npy")) for index in range(count)]
    lengths = storage.map_files(_array_length, paths, are_local=storage.is_local(output))
    return tuple(itertools.accumulate(lengths, initial=0))


def _array_length(path: str) -> int:
    """Return the length of an array by its header: to map it would copy a remote file."""
    with storage.open_read(path) as stream:
        np.lib.format.read_magic(stream)
        return int(np.lib.format.read_array_header_1_0(stream)[0][0])


def part_of(part: int, parts: int, count: int) -> range:
    """Return what one of several tasks reads of `count` buckets or shards."""
    return range(count * part // parts, count * (part + 1) // parts)


class Records:
    """The records of all documents; of one shard after the other they are memory-mapped while they are read."""

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
        """Return the rank of each document among these, the best 0; it depends on nothing but the documents.

        Best are documents of earlier corpora, then those of highest score, earliest creation, smallest id.
        """
        unique, places = np.unique(numbers, return_inverse=True)
        keys = (self.take(unique, "created"), -self.take(unique, "score"), unique < self._corpus.own_documents)
        order = np.lexsort(keys)
        is_tied = np.zeros(len(unique), bool)
        same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
        is_tied[order[1:][same]] = is_tied[order[:-1][same]] = True
        id_ranks = np.zeros(len(unique), np.int64)
        id_ranks[is_tied] = pc.rank(pa.array(self.ids(unique[is_tied]), pa.string()), tiebreaker="min").to_numpy()
        # Documents of equal ids are ranked by their texts; only of equal texts the first of the input is the best.
        texts = self.take(unique, "text_hash")
        ranks = np.empty(len(unique), np.int64)
        ranks[np.lexsort((unique, texts[:, 1], texts[:, 0], id_ranks, *keys))] = np.arange(len(unique))
        return ranks[places]

    def estimate(self, pairs: Numbers) -> npt.NDArray[np.float64]:
        """Return the estimated similarity of pairs, shape (2, pairs); the error is about 0.04 with 128 values."""
        left, right = (self.take(numbers, "sketch") for numbers in pairs)
        return estimated_jaccard(np.count_nonzero(left == right, axis=1), left.shape[1])


def read_columns(paths: Sequence[str], schema: pa.Schema, bucket: int | range | None) -> list[npt.NDArray[Any]]:
    """Return the columns of buckets (None: of all) in all files, one after the other; of numbers only."""
    return [column.to_numpy() for column in pa.Table.from_batches(read_bucket(paths, schema, bucket), schema).columns]


def bucket_batch(schema: pa.Schema, *columns: npt.NDArray[Any]) -> pa.RecordBatch:
    """Return a batch of columns of numbers."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def buckets_of(hashes: npt.NDArray[np.uint64], buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row by its hash."""
    return (hashes % np.uint64(buckets)).astype(np.int32)
