"""What a fetch shows: its activity while it runs, and `report.html` at the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from pipelines import storage
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import NEXT, FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.format import format_bytes
from pipelines.records import shards
from pipelines.records.tally import Tally, read_tallies
from pipelines.stages.fetch.outcomes import LIVE, OK, Outcome

PAGE, TABLES = "report.html", "report.json"
_DOMAINS = 20
SHOWN_HOSTS = 3
ACTIVITY = ".activity.json"
# An older file is of a process that was killed.
_CURRENT_S = 60.0


def describe_activity(output: str) -> str | None:
    """Return what a running fetch in a folder is doing, in one line; None if nothing is known."""
    outcomes: Counter[str] = Counter()
    page_bytes = hosts = 0
    slowest: list[tuple[float, str]] = []
    for work in (storage.join(output, NEXT, WORK), storage.join(output, WORK)):
        for name in storage.list_folder(work):
            if not name.endswith(ACTIVITY):
                continue
            try:
                activity = storage.read_json(storage.join(work, name))
            except InputError:  # the shard has just been completed
                continue
            if time.time() - activity["at"] < _CURRENT_S:
                outcomes.update(activity["outcomes"])
                page_bytes += activity["bytes"]
                hosts += activity["hosts"]
                slowest += map(tuple, activity["slowest"])
    if not outcomes and not hosts:
        return None
    counts = ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common())
    shown = ", ".join(f"{origin} {seconds:.0f} s" for seconds, origin in sorted(slowest, reverse=True)[:SHOWN_HOSTS])
    parts = [counts, format_bytes(page_bytes), f"{hosts:,} hosts in progress", shown and f"slowest: {shown}"]
    return "; ".join(filter(None, parts))


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
    outcomes = []
    for key, count in tally.counter("outcomes").items():
        name, _, status = key.partition(" ")
        outcomes.append((name, int(status), count))
    tables = {"outcomes": sorted(outcomes), "domains": list(tally.sample("domains", _DOMAINS))}
    minutes = {
        name: {int(minute): count for minute, count in tally.counter(f"{name} by minute").items()}
        for name in (OK, "dropped")
    }
    page = render_fetch_report(tables["outcomes"], minutes, tables["domains"])
    files = [write_page(output, PAGE, page)]
    return TaskResult(files=(*files, shards.write_file(output, TABLES, json.dumps(tables).encode())))


def read_domains(output: str) -> list[tuple[str, int, int, str]]:
    """Return the domains with the most drops of a finished fetch: name, links, drops, most frequent reason."""
    return [tuple(row) for row in storage.read_json(storage.join(output, TABLES))["domains"]]
