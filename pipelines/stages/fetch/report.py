"""The report of a fetch: outcomes by status and over time, and the domains with the most drops."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from pipelines import storage
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.tally import Tally, read_tallies
from pipelines.stages.fetch.outcomes import LIVE, OK, Outcome

PAGE, TABLES = "report.html", "report.json"
_DOMAINS = 20


def write_tally(output: str, index: int, outcomes: Iterable[tuple[str, Outcome]]) -> FileEntry:
    """Write what the report needs of the outcomes of a shard, which has all links of their domains."""
    tally, links, drops = Tally(), Counter[str](), dict[str, Counter[str]]()
    for url, outcome in outcomes:
        is_ok = outcome.outcome == OK
        name = outcome.source if is_ok and outcome.source != LIVE else outcome.outcome.removeprefix("dropped.")
        tally.counter("outcomes")[f"{name} {outcome.status or 0}"] += 1
        tally.counter(f"{OK if is_ok else 'dropped'} by minute")[str(int(outcome.fetched_at.timestamp() // 60))] += 1
        links[domain := registered_domain(url) or ""] += 1
        if not is_ok:
            drops.setdefault(domain, Counter())[name] += 1
    domains = tally.sample("domains", _DOMAINS)
    for domain, reasons in drops.items():
        row = [domain, links[domain], reasons.total(), reasons.most_common(1)[0][0]]
        domains.add([-reasons.total(), domain], row)
    return tally.write(output, shards.shard_name("report", index, "json"))


def write_report(output: str, indexes: Sequence[int]) -> TaskResult:
    """Write the report from the tallies of all shards, as a page and as tables."""
    from pipelines.reports.fetch import render_fetch_report
    from pipelines.reports.render import write_page

    tally = read_tallies([storage.join(output, shards.shard_name("report", index, "json")) for index in indexes])
    counts = ((key.split(), count) for key, count in tally.counter("outcomes").items())
    outcomes = sorted((words[0], int(words[1]), count) for words, count in counts)
    tables = {"outcomes": outcomes, "domains": list(tally.sample("domains", _DOMAINS))}
    minutes = {
        name: {int(minute): count for minute, count in tally.counter(f"{name} by minute").items()}
        for name in (OK, "dropped")
    }
    page = render_fetch_report(outcomes, minutes, tables["domains"])
    table = shards.write_file(output, TABLES, json.dumps(tables).encode())
    return TaskResult(files=(write_page(output, PAGE, page), table))


def read_domains(output: str) -> list[tuple[str, int, int, str]]:
    """Return the domains with the most drops of a finished fetch: name, links, drops, most frequent reason."""
    return [tuple(row) for row in storage.read_json(storage.join(output, TABLES))["domains"]]
