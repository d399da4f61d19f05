"""Writes `report.html`: counts by similarity, cluster size and domain; the largest clusters; pairs near the threshold.

What is shown is chosen by the hashes of texts, before the documents are filtered: that pass collects their texts.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.document_filter import urls_of
from pipelines.records.drops import Drops
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.records import Corpus, Numbers, Records, work_name
from pipelines.stages.dedup.sources import SourceShard

PAGE = "report.html"
PAIRS, CLUSTERS, MEMBERS, DOMAINS = 50, 20, 5, 30
SHOWN_CHARACTERS = 20_000
# Similarities are counted in steps of 0.05.
STEPS = 20
# Clusters are counted by size, 2**n to 2**(n + 1) - 1 documents.
_POWERS = 48
_CHOICE = storage.join(WORK, "shown.json")
_DOMAIN_SCHEMA = pa.schema([("domain", pa.string()), ("documents", pa.int64()), ("dropped", pa.int64())])
# 128 buckets of the stage have about a million documents: at most 50 MB of domains.
_BUCKETS_PER_DOMAIN_BUCKET = 128
_CHUNK_DOCUMENTS = 1 << 16


def tally_clusters(
    corpus: Corpus, group: int, documents: Numbers, kept: Numbers, is_near: npt.NDArray[np.bool_], jaccard: Any
) -> FileEntry:
    """Write the counts of the clusters whose kept document is in a group of shards, and which of them may be shown.

    The arrays describe the dropped documents of these clusters.
    """
    records = Records(corpus)
    steps = np.minimum((jaccard * STEPS + 1e-9).astype(np.int64), STEPS - 1)
    near = np.flatnonzero(is_near)
    # One pair per cluster: those of several versions of a page look alike.
    pairs = near[_lowest(steps[near], documents[near], records, PAIRS, groups=kept[near])]
    heads, dropped = np.unique(kept, return_counts=True)
    powers = np.frexp(dropped + 1)[1] - 1
    sizes = np.stack([np.bincount(powers, weights, minlength=_POWERS) for weights in (None, dropped + 1)])
    clusters = []
    for place in _lowest(-dropped, heads, records, CLUSTERS).tolist():
        members = np.flatnonzero(kept == heads[place])
        shown = members[_lowest(jaccard[members], documents[members], records, MEMBERS)]
        hash = records.take(heads[[place]], "text_hash")[0, 0]
        listed = list(zip(documents[shown].tolist(), jaccard[shown].tolist(), strict=True))
        clusters.append([-int(dropped[place]) - 1, int(hash), int(heads[place]), listed])
    hashes = records.take(documents[pairs], "text_hash")[:, 0]
    columns = (steps[pairs], hashes, documents[pairs], kept[pairs], jaccard[pairs])
    tally = {
        "similarities": np.bincount(steps[near], minlength=STEPS).tolist(),
        "sizes": sizes.astype(np.int64).tolist(),
        "pairs": list(zip(*(column.tolist() for column in columns), strict=True)),
        "clusters": clusters,
    }
    return shards.write_file(corpus.output, work_name("tally", group, "json"), json.dumps(tally).encode())


def _lowest(
    keys: npt.NDArray[Any], documents: Numbers, records: Records, count: int, groups: Numbers | None = None
) -> Numbers:
    """Return the places of the documents with the lowest keys, in their order; equal keys by the hash of the text.

    Of each group, by default of equal texts, one is returned.
    """
    lowest = np.empty(0, np.int64)
    for start in range(0, len(keys), _CHUNK_DOCUMENTS):
        places = np.concatenate((lowest, np.arange(start, min(start + _CHUNK_DOCUMENTS, len(keys)))))
        hashes = records.take(documents[places], "text_hash")[:, 0]
        order = np.lexsort((hashes, keys[places]))
        _, first = np.unique((hashes if groups is None else groups[places])[order], return_index=True)
        lowest = places[order[np.sort(first)[:count]]]
    return lowest


def choose_documents(corpus: Corpus) -> TaskResult:
    """Count all clusters, also those that an earlier document leads, and write which ones and which pairs are shown."""
    similarities, sizes = np.zeros(STEPS, np.int64), np.zeros((2, _POWERS), np.int64)
    pairs: list[Any] = []
    clusters: list[Any] = []
    for path in corpus.paths("tally", "json", corpus.groups):
        tally = storage.read_json(path)
        similarities += tally["similarities"]
        sizes += tally["sizes"]
        pairs = sorted(pairs + tally["pairs"])[:PAIRS]
        clusters = sorted(clusters + tally["clusters"])[:CLUSTERS]
    documents = {number for _, _, dropped, kept, _ in pairs for number in (dropped, kept)}
    documents |= {number for _, _, head, members in clusters for number in (head, *(member for member, _ in members))}
    choice = {
        "similarities": similarities.tolist(),
        "sizes": [row for row in zip(range(_POWERS), *sizes.tolist(), strict=True) if row[1]],
        "pairs": pairs,
        "clusters": clusters,
        "documents": sorted(documents),
    }
    counts = {"clusters": int(sizes[0].sum()), "largest_cluster": -clusters[0][0] if clusters else 0}
    return TaskResult(counts=counts, files=(shards.write_file(corpus.output, _CHOICE, json.dumps(choice).encode()),))


class ShardReport:
    """What the report shows of the documents of a shard: how many are dropped by domain, and texts that were chosen."""

    def __init__(self, corpus: Corpus, shard: int) -> None:
        self._corpus, self._shard = corpus, shard
        self._row = corpus.starts[shard]
        chosen = storage.read_json(storage.join(corpus.output, _CHOICE))["documents"]
        self.missing = {number for number in chosen if corpus.starts[shard] <= number < corpus.starts[shard + 1]}
        self._shown: dict[int, Any] = {}
        self._documents, self._dropped = Counter[str](), Counter[str]()

    def add(self, batch: pa.RecordBatch, is_dropped: Sequence[bool] | None = None) -> None:
        """Add the next documents of the shard; without `is_dropped`, only the chosen texts."""
        urls = urls_of(batch)
        numbers = range(self._row, self._row + batch.num_rows)
        for number in self.missing.intersection(numbers):
            # A text may have gigabytes.
            text = batch.column("text").slice(number - self._row, 1)
            [beginning] = pc.utf8_slice_codeunits(text, 0, SHOWN_CHARACTERS).to_pylist()
            characters = pc.utf8_length(text)[0].as_py()
            self._shown[number] = {"url": urls[number - self._row], "text": beginning, "characters": characters}
        self.missing -= self._shown.keys()
        self._row += batch.num_rows
        for url, dropped in zip(urls, is_dropped or (), strict=False):
            if url and (domain := registered_domain(url)):
                self._documents[domain] += 1
                self._dropped[domain] += dropped

    def write(self) -> tuple[FileEntry, FileEntry]:
        """Write the work files that `write_report` reads."""
        name, buckets = work_name("domains", self._shard, "buckets"), _domain_buckets(self._corpus)
        columns = (self._documents, self._documents.values(), self._dropped.values())
        rows = {field: list(column) for field, column in zip(_DOMAIN_SCHEMA.names, columns, strict=True)}
        batch = pa.RecordBatch.from_pydict(rows, _DOMAIN_SCHEMA)
        with write_buckets(storage.join(self._corpus.output, name), _DOMAIN_SCHEMA) as written:
            written.writer.write(batch, [zlib.crc32(domain.encode()) % buckets for domain in self._documents])
        shown = json.dumps(self._shown, sort_keys=True).encode()
        return (
            written.entry(name),
            shards.write_file(self._corpus.output, work_name("shown", self._shard, "json"), shown),
        )


def _domain_buckets(corpus: Corpus) -> int:
    return -(-corpus.buckets // _BUCKETS_PER_DOMAIN_BUCKET)


def read_earlier(shard: SourceShard, corpus: Corpus) -> TaskResult:
    """Write the chosen texts of a shard of an earlier corpus; there are none if only its signatures are kept."""
    report = ShardReport(corpus, shard.index)
    if shard.documents is not None and report.missing:
        for batch in inputs.read_documents(shard.documents, Drops()):
            report.add(batch)
            if not report.missing:
                break
    return TaskResult(files=report.write())


def write_report(config: DedupConfig, corpus: Corpus, entries: Sequence[ShardEntry]) -> TaskResult:
    """Write the page; `entries` are those of the tasks that filtered the documents."""
    from pipelines.reports.dedup import render_dedup_report

    choice = storage.read_json(storage.join(corpus.output, _CHOICE))
    numbers = np.array(choice["documents"], np.int64)
    documents: dict[int, dict[str, Any]] = {
        number: {"id": id, "url": None, "text": None, "characters": 0}
        for number, id in zip(numbers.tolist(), Records(corpus).ids(numbers), strict=True)
    }
    for shard in np.unique(corpus.shards_of(numbers)).tolist():
        shown = storage.read_json(storage.join(corpus.output, work_name("shown", shard, "json")))
        for number, fields in shown.items():
            documents[int(number)] |= fields
    dropped = Counter[str]()
    for entry in entries:
        dropped.update(entry.dropped)
    clusters = [
        (-size, documents[head], [(documents[member], jaccard) for member, jaccard in members])
        for size, _, head, members in choice["clusters"]
    ]
    pairs = [(jaccard, documents[kept], documents[number]) for *_, number, kept, jaccard in choice["pairs"]]
    report = {
        **{name: getattr(config, name) for name in ("threshold", "ngram", "num_perm")},
        **{"similarities": choice["similarities"], "sizes": choice["sizes"], "domains": _top_domains(corpus)},
        **{"records": sum(entry.records_in for entry in entries), "dropped": dropped, "clusters": clusters},
        "pairs": sorted(pairs, key=itemgetter(0)),
    }
    return TaskResult(files=(shards.write_file(corpus.output, PAGE, render_dedup_report(report).encode()),))


def _top_domains(corpus: Corpus) -> list[tuple[str, int, int]]:
    """Return the domains with most dropped documents, the documents of each and the dropped ones."""
    paths = corpus.paths("domains", "buckets", corpus.own_shards)
    top: list[tuple[str, int, int]] = []
    for bucket in range(_domain_buckets(corpus)):
        domains = pa.Table.from_batches(read_bucket(paths, _DOMAIN_SCHEMA, bucket), _DOMAIN_SCHEMA).group_by("domain")
        sums = domains.aggregate([("documents", "sum"), ("dropped", "sum")])
        rows = sums.sort_by([("dropped_sum", "descending"), ("domain", "ascending")]).slice(0, DOMAINS).to_pylist()
        top += [(row["domain"], row["documents_sum"], row["dropped_sum"]) for row in rows if row["dropped_sum"]]
        top = sorted(top, key=lambda row: (-row[2], row[0]))[:DOMAINS]
    return top
