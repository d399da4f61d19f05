"""Writes `report.html`: counts by similarity, cluster size and domain; the largest clusters; pairs near the threshold.

Documents to show are chosen by the hashes of their texts, before the pass that filters documents, which collects their
texts.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import read_bucket
from pipelines.records.drops import Drops
from pipelines.records.tally import Tally, read_tallies
from pipelines.records.text_columns import urls_of
from pipelines.stages.dedup.documents import Column, Corpus, Numbers, Records, SourceShard, work_name

PAGE = "report.html"
PAIRS, CLUSTERS, MEMBERS, DOMAINS = 50, 20, 5, 30
SHOWN_CHARACTERS = 20_000
# Similarities are counted in steps of 0.05.
STEPS = 20
_CHOICE = storage.join(WORK, "shown.json")
_DOMAIN_SCHEMA = pa.schema([("domain", pa.string()), ("documents", pa.int64()), ("dropped", pa.int64())])
# 128 buckets of the stage have about a million documents: at most 50 MB of domains.
_BUCKETS_PER_DOMAIN_BUCKET = 128


def tally_clusters(
    corpus: Corpus, group: int, documents: Numbers, kept: Numbers, is_near: Column, jaccard: Column
) -> FileEntry:
    """Write the counts of the clusters whose kept document is in a group of shards, and the candidates to show.

    The arrays describe the dropped documents of these clusters. `similarities` are counted in steps, `clusters` and
    `members` by cluster size: n for 2**n to 2**(n + 1) - 1 documents.
    """
    tally, records = Tally(), Records(corpus)
    heads, dropped = np.unique(kept, return_counts=True)
    hashes, head_hashes = (records.take(numbers, "text_hash")[:, 0] for numbers in (documents, heads))
    steps = np.minimum((jaccard * STEPS + 1e-9).astype(np.int64), STEPS - 1)
    tally.counter("similarities").update(map(str, steps[is_near].tolist()))
    for size in (dropped + 1).tolist():
        power = str(size.bit_length() - 1)
        tally.counter("clusters")[power] += 1
        tally.counter("members")[power] += size
    near = np.flatnonzero(is_near)
    # One pair per cluster: pairs of several versions of a page look alike.
    for row in near[_lowest(steps[near], hashes[near], kept[near], PAIRS)].tolist():
        key = [int(steps[row]), int(hashes[row]), int(documents[row])]
        tally.sample("pairs", PAIRS).add(key, [int(documents[row]), int(kept[row]), float(jaccard[row])])
    for place in _lowest(-dropped, head_hashes, head_hashes, CLUSTERS).tolist():
        members = np.flatnonzero(kept == heads[place])
        shown = members[_lowest(jaccard[members], hashes[members], hashes[members], MEMBERS)]
        listed = list(zip(documents[shown].tolist(), jaccard[shown].tolist(), strict=True))
        key = [-int(dropped[place]) - 1, int(head_hashes[place])]
        tally.sample("largest", CLUSTERS).add(key, [int(dropped[place]) + 1, int(heads[place]), listed])
    return tally.write(corpus.output, work_name("tally", group, "json"))


def _lowest(keys: Column, hashes: Column, groups: Column, count: int) -> Numbers:
    """Return the positions of the lowest keys in ascending order, one per group; ties are broken by the hashes."""
    order = np.lexsort((hashes, keys))
    _, first = np.unique(groups[order], return_index=True)
    return np.asarray(order[np.sort(first)[:count]])


def choose_documents(corpus: Corpus) -> TaskResult:
    """Count all clusters, also those of earlier corpora, and write which clusters and pairs to show."""
    tally = read_tallies(corpus.paths("tally", "json", corpus.groups))
    largest = max((size for size, *_ in tally.sample("largest", CLUSTERS)), default=0)
    counts = {"clusters": tally.counter("clusters").total(), "largest_cluster": largest}
    return TaskResult(counts=counts, files=(tally.write(corpus.output, _CHOICE),))


def _read_choice(corpus: Corpus) -> tuple[Tally, list[int]]:
    """Return the sum of the tallies, and the documents that are shown."""
    tally = read_tallies([storage.join(corpus.output, _CHOICE)])
    documents = {number for *pair, _ in tally.sample("pairs", PAIRS) for number in pair}
    for _, head, members in tally.sample("largest", CLUSTERS):
        documents |= {head, *(member for member, _ in members)}
    return tally, sorted(documents)


class ShardReport:
    """The part of the report about the documents of a shard: counts by domain, and the texts to show."""

    def __init__(self, corpus: Corpus, shard: int) -> None:
        self._corpus, self._shard = corpus, shard
        self._row = corpus.starts[shard]
        begin, end = corpus.starts[shard : shard + 2]
        self.missing = {number for number in _read_choice(corpus)[1] if begin <= number < end}
        self._shown: dict[int, Any] = {}
        self._documents, self._dropped = Counter[str](), Counter[str]()

    def add(self, batch: pa.RecordBatch, is_dropped: Sequence[bool] | None = None) -> None:
        """Add the next documents of the shard; without `is_dropped`, only the chosen texts."""
        urls = urls_of(batch)
        numbers = range(self._row, self._row + batch.num_rows)
        for number in self.missing.intersection(numbers):
            # A text can have gigabytes.
            text = batch.column("text").slice(number - self._row, 1)
            [beginning] = pc.utf8_slice_codeunits(text, 0, SHOWN_CHARACTERS).to_pylist()
            characters = pc.utf8_length(text)[0].as_py()
            self._shown[number] = {"url": urls[number - self._row], "text": beginning, "characters": characters}
        self.missing -= self._shown.keys()
        self._row += batch.num_rows
        if counted := [(url, dropped) for url, dropped in zip(urls, is_dropped or (), strict=False) if url]:
            from pipelines.algorithms.web.urls import registered_domain  # deferred: the public suffix list takes 0.1 s

            for url, dropped in counted:
                if domain := registered_domain(url):
                    self._documents[domain] += 1
                    self._dropped[domain] += dropped

    def write(self) -> tuple[FileEntry, FileEntry]:
        """Write the work files that `write_report` reads."""
        columns = [list(column) for column in (self._documents, self._documents.values(), self._dropped.values())]
        buckets = [zlib.crc32(domain.encode()) % _domain_buckets(self._corpus) for domain in self._documents]
        domains = self._corpus.write_buckets("domains", self._shard, _DOMAIN_SCHEMA, columns, buckets)
        shown = json.dumps(self._shown, sort_keys=True).encode()
        return domains, shards.write_file(self._corpus.output, work_name("shown", self._shard, "json"), shown)


def read_earlier(shard: SourceShard, corpus: Corpus) -> TaskResult:
    """Write the texts to show of a shard of an earlier corpus, unless only its signatures are left."""
    report = ShardReport(corpus, shard.index)
    if shard.documents is not None and report.missing:
        for batch in inputs.read_documents(shard.documents, Drops()):
            report.add(batch)
            if not report.missing:
                break
    return TaskResult(files=report.write())


def write_report(corpus: Corpus, entries: Sequence[ShardEntry]) -> TaskResult:
    """Write the page; `entries` are those of the tasks that filtered the documents."""
    from pipelines.reports.dedup import render_dedup_report
    from pipelines.reports.render import write_page

    tally, numbers = _read_choice(corpus)
    documents: dict[int, dict[str, Any]] = {
        number: {"id": id, "url": None, "text": None, "characters": 0}
        for number, id in zip(numbers, Records(corpus).ids(np.array(numbers, np.int64)), strict=True)
    }
    for shard in np.unique(corpus.shards_of(np.array(numbers, np.int64))).tolist():
        shown = storage.read_json(corpus.path("shown", shard, "json"))
        for number, fields in shown.items():
            documents[int(number)] |= fields
    dropped = Counter[str]()
    for entry in entries:
        dropped.update(entry.dropped)
    clusters, members = tally.counter("clusters"), tally.counter("members")
    pairs = [(jaccard, documents[head], documents[number]) for number, head, jaccard in tally.sample("pairs", PAIRS)]
    report = {
        **{name: getattr(corpus.config, name) for name in ("threshold", "ngram", "num_perm")},
        "similarities": [tally.counter("similarities")[str(step)] for step in range(STEPS)],
        "sizes": [[power, clusters[str(power)], members[str(power)]] for power in sorted(map(int, clusters))],
        "domains": _top_domains(corpus),
        "records": sum(entry.records_in for entry in entries),
        "dropped": dropped,
        "clusters": [
            (size, documents[head], [(documents[member], jaccard) for member, jaccard in listed])
            for size, head, listed in tally.sample("largest", CLUSTERS)
        ],
        "pairs": sorted(pairs, key=itemgetter(0)),
    }
    return TaskResult(files=(write_page(corpus.output, PAGE, render_dedup_report(report)),))


def _domain_buckets(corpus: Corpus) -> int:
    return -(-corpus.buckets // _BUCKETS_PER_DOMAIN_BUCKET)


def _top_domains(corpus: Corpus) -> list[tuple[str, int, int]]:
    """Return the domains with the most dropped documents: name, documents, dropped documents."""
    paths = corpus.paths("domains", "buckets", corpus.own_shards)
    top: list[tuple[str, int, int]] = []
    for bucket in range(_domain_buckets(corpus)):
        domains = pa.Table.from_batches(read_bucket(paths, _DOMAIN_SCHEMA, bucket), _DOMAIN_SCHEMA).group_by("domain")
        sums = domains.aggregate([("documents", "sum"), ("dropped", "sum")])
        rows = sums.sort_by([("dropped_sum", "descending"), ("domain", "ascending")]).slice(0, DOMAINS).to_pylist()
        top += [(row["domain"], row["documents_sum"], row["dropped_sum"]) for row in rows if row["dropped_sum"]]
        top = sorted(top, key=lambda row: (-row[2], row[0]))[:DOMAINS]
    return top
