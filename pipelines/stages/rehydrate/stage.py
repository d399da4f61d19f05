"""Gives each document of a release a verdict: whether its page still has the same text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.minhash.sketch import estimate_jaccard, sketches
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.records import inputs, shards
from pipelines.records.data_card import DATA_CARD, write_data_card
from pipelines.records.document_filter import DropReason, filter_shard
from pipelines.records.inputs import InputFile
from pipelines.records.schemas import make_schema
from pipelines.records.tally import Tally, read_tallies
from pipelines.stages.rehydrate.links import EXPECTED, NO_OPTIONS

PAGE, TABLES = "report.html", "report.json"
STAGE = Stage("rehydrate", 1, (PAGE, TABLES, DATA_CARD))
VERDICTS = EXACT, NEAR, CHANGED, GONE = "exact", "near", "changed", "gone"
# The minimum estimated Jaccard similarity of a near text, as of near-duplicates.
NEAR_JACCARD = 0.8
VERDICT_SCHEMA = make_schema(
    id="string", url="string", final_url="string?", source="string", verdict="string", jaccard="float64?",
    reason="string?",
)  # fmt: skip
_DOMAINS = 20


def rehydrate(*, links: str, pages: str, documents: Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write a verdict for each document of a release, and the documents whose text is exact or near.

    `documents` are the folders of the stages that made the texts, in order. Records in are those of the release.
    """
    folders = [inputs.open_stage(path, ["scrape", "fetch", "extract", "filter"]) for path in (links, pages, *documents)]
    fingerprints = {folder.manifest.identity.stage: folder.manifest.fingerprint() for folder in folders}
    # Every stage has a shard for each shard of links, in the same order.
    files = [folders[0].files("links-"), folders[1].files("pages-", ".parquet"), folders[-1].files("documents-")]
    items = list(enumerate(zip(*files, *(folder.files("dropped-") for folder in folders[1:]), strict=True)))
    options = dataclasses.replace(options, follow_inputs=(*fingerprints,))
    with stage_run(STAGE, NO_OPTIONS, inputs=fingerprints, output=output, options=options, texts=files[2]) as run:
        if not run.finished:
            total = folders[-1].manifest.records_out
            run.map(_compare_shard, items, run.output, name=lambda item: f"documents-{item[0]:05d}", total=total)
            run.once("card", lambda: write_data_card(run.output, STAGE.name))
            run.once("report", lambda: _write_report(run.output, len(items)))
        return run.finish()


def _compare_shard(item: tuple[int, tuple[InputFile, ...]], output: str) -> TaskResult:
    """Write the verdicts of a shard, in the order of the links, and the documents that are kept."""
    index, (links, pages, documents, *drops) = item
    tally, domains = Tally(), defaultdict[str, Counter[str]](Counter)
    verdicts, rows = tally.counter("verdicts"), _expected(links, pages, drops)
    with shards.write_shard(output, shards.shard_name("verdicts", index), VERDICT_SCHEMA) as written:

        def add(row: dict[str, Any], verdict: str, jaccard: float | None = None) -> bool:
            reason = row["reason"] if verdict == GONE else None
            written.write({**row, "verdict": verdict, "jaccard": jaccard, "reason": reason})
            tally.counter(row["source"])[verdict] += 1
            tally.counter("reasons").update([reason] if reason else [])
            domains[registered_domain(row["url"]) or ""][verdict] += 1
            verdicts[verdict] += 1
            return verdict != GONE

        def decide(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DropReason | None]]:
            texts, ids, reasons = batch.column("text"), list[str](), list[DropReason | None]()
            for url, text, sketch in zip(batch.column("url").to_pylist(), texts, sketches(texts), strict=True):
                # Documents before the next one that has a text are gone.
                row, jaccard = next(row for row in rows if row["url"] == url or add(row, GONE)), 1.0
                if is_changed := hashlib.sha256(text.as_buffer()).digest() != row["text_sha256"]:
                    [jaccard] = estimate_jaccard(pa.array([row["sketch"]]), pa.array([sketch])).tolist()
                add(row, (NEAR if jaccard >= NEAR_JACCARD else CHANGED) if is_changed else EXACT, jaccard)
                ids.append(row["id"])
                reasons.append(DropReason(CHANGED, f"Jaccard {jaccard:.3f}") if jaccard < NEAR_JACCARD else None)
            place = batch.schema.get_field_index("id")
            return batch.set_column(place, batch.schema.field(place), pa.array(ids, pa.string())), reasons

        result = filter_shard(inputs.DocumentShard(index, (documents,)), output, decide)
        for row in rows:
            add(row, GONE)
    for domain, counts in domains.items():
        shown = [domain, *(counts[verdict] for verdict in VERDICTS)]
        tally.sample("domains", _DOMAINS).add([counts[EXACT] - counts.total(), domain], shown)
    files = (*result.files, written.entry, tally.write(output, shards.shard_name("report", index, "json")))
    dropped = {verdict: verdicts[verdict] for verdict in (CHANGED, GONE) if verdicts[verdict]}
    return TaskResult(verdicts.total(), result.records_out, dropped, {n: verdicts[n] for n in (EXACT, NEAR)}, files)


def _expected(links: InputFile, pages: InputFile, drops: Sequence[InputFile]) -> Iterator[dict[str, Any]]:
    """Yield what the release has of each document, with its page, and the reason if there is no text."""
    reasons = dict[str, str]()
    for file in (links, pages, *drops):
        file.verify()
    for file in drops:
        rows = shards.read_rows(file.path, ["url", "reason"])
        reasons.update((row["url"], f"{file.stage}.{row['reason']}") for row in rows)
    fetched = shards.read_rows(pages.path, ["url", "final_url", "source"])
    for row, page in zip(shards.read_rows(links.path, [*EXPECTED]), fetched, strict=True):
        yield {**row, **page, "reason": reasons.get(row["url"])}


def _write_report(output: str, tasks: int) -> TaskResult:
    """Write the verdicts by source and of some domains as a page and as tables, from the tallies of all shards."""
    from pipelines.reports.render import render, write_page

    tally = read_tallies([storage.join(output, shards.shard_name("report", index, "json")) for index in range(tasks)])
    tables: dict[str, Any] = {name: dict(tally.counter(name).most_common()) for name in ("verdicts", "reasons")}
    tables["sources"] = {name: dict(tally.counter(name)) for name in sorted(tally.counts.keys() - tables.keys())}
    tables["domains"] = list(tally.sample("domains", _DOMAINS))
    page = write_page(output, PAGE, render("rehydrate.html", **tables, names=VERDICTS, threshold=NEAR_JACCARD))
    return TaskResult(files=(page, shards.write_file(output, TABLES, json.dumps(tables).encode())))
