"""The report of a rehydration: verdicts by source and by domain, and how similar the texts are that differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipelines import storage
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.tally import Tally, read_tallies
from pipelines.stages.rehydrate.config import EXACT, GONE, VERDICTS, RehydrateConfig

PAGE, TABLES = "report.html", "report.json"
_DOMAINS = 20
_BINS = 20


class VerdictTally:
    """The verdicts of a shard, which has all documents of their domains."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self._tally = Tally()
        self._domains: dict[str, Counter[str]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Count the verdict of a document."""
        verdict, jaccard = row["verdict"], row["jaccard"]
        self.verdicts[verdict] += 1
        self._tally.counter("sources")[f"{row['source']} {verdict}"] += 1
        self._domains.setdefault(registered_domain(row["url"]) or "", Counter())[verdict] += 1
        if verdict == GONE:
            self._tally.counter("reasons")[row["reason"]] += 1
        elif verdict != EXACT:
            self._tally.counter("jaccard")[str(min(int(jaccard * _BINS), _BINS - 1))] += 1

    def write(self, output: str, index: int) -> FileEntry:
        """Write the tally, with the domains that lost the most documents."""
        domains = self._tally.sample("domains", _DOMAINS)
        for domain, verdicts in self._domains.items():
            lost = verdicts.total() - verdicts[EXACT]
            domains.add([-lost, -verdicts.total(), domain], [domain, *(verdicts[name] for name in VERDICTS)])
        return self._tally.write(output, shards.shard_name("report", index, "json"))


def write_report(output: str, config: RehydrateConfig, tasks: int) -> TaskResult:
    """Write the report from the tallies of all shards, as a page and as tables."""
    from pipelines.reports.charts import Axis, Series, line_chart
    from pipelines.reports.render import render, write_page

    paths = [storage.join(output, shards.shard_name("report", index, "json")) for index in range(tasks)]
    tally = read_tallies(paths)
    sources: dict[str, dict[str, int]] = {}
    for key, count in sorted(tally.counter("sources").items()):
        source, _, verdict = key.partition(" ")
        sources.setdefault(source, dict.fromkeys(VERDICTS, 0))[verdict] = count
    tables: dict[str, Any] = {
        "verdicts": {verdict: sum(counts[verdict] for counts in sources.values()) for verdict in VERDICTS},
        "sources": sources,
        "reasons": dict(sorted(tally.counter("reasons").items(), key=lambda item: (-item[1], item[0]))),
        "domains": list(tally.sample("domains", _DOMAINS)),
        "jaccard": [tally.counter("jaccard")[str(place)] for place in range(_BINS)],
    }
    points = [((place + 0.5) / _BINS, count) for place, count in enumerate(tables["jaccard"])]
    caption = "Texts that are not exact, by their estimated Jaccard similarity to the text of the release."
    markers = [(f"threshold {config.near:g}", config.near)]
    chart = line_chart("Similarity", caption, [Series("documents", points)], Axis(), Axis(), markers=markers)
    page = write_page(output, PAGE, render("rehydrate.html", **tables, names=VERDICTS, chart=chart))
    return TaskResult(files=(page, shards.write_file(output, TABLES, json.dumps(tables).encode())))
