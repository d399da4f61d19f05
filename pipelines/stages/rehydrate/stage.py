"""Gives each document of a release a verdict: whether its page still has the same text."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines import progress
from pipelines.algorithms.minhash.sketch import SKETCH_TYPE, estimate_jaccard, sketches
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.records import inputs, shards
from pipelines.records.data_card import DATA_CARD, write_data_card
from pipelines.records.drops import Drops
from pipelines.records.inputs import DocumentShard, InputFile, StageFolder
from pipelines.records.schemas import make_schema
from pipelines.stages.rehydrate.config import CHANGED, EXACT, GONE, NEAR, RehydrateConfig
from pipelines.stages.rehydrate.links import EXPECTED_SCHEMA
from pipelines.stages.rehydrate.report import PAGE, TABLES, VerdictTally, write_report

STAGE = Stage("rehydrate", 1, (PAGE, TABLES, DATA_CARD))
VERDICT_SCHEMA = make_schema(
    id="string", url="string", final_url="string?", verdict="string", jaccard="float64?", reason="string?",
    source="string",
)  # fmt: skip

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Shard:
    """The files of one task: what the release recorded, the pages, what each stage dropped of them, the documents.

    All are in the order of the links; `drops` are the files of a stage each, in order.
    """

    index: int
    expected: InputFile
    pages: InputFile
    drops: tuple[InputFile, ...]
    documents: InputFile

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"documents-{self.index:05d}"


def rehydrate(
    config: RehydrateConfig, *, links: str, pages: str, documents: Sequence[str], output: str, options: RunOptions
) -> Summary:
    """Write a verdict for each document of a release, and the documents whose text is the same or near.

    `links` is the folder of `write_release_links`, `pages` that of fetch, and `documents` those of the stages that made
    the texts, the last of which has them. Records in are the documents of the release.
    """
    folders = [inputs.open_stage(folder, [name]) for folder, name in ((links, "scrape"), (pages, "fetch"))]
    folders += [inputs.open_stage(folder, ["extract", "filter"]) for folder in documents]
    fingerprints = [folder.manifest.fingerprint() for folder in folders]
    identities = {"links": fingerprints[0], "pages": fingerprints[1], "documents": " ".join(fingerprints[2:])}
    items = _shards(folders[0], folders[1:])
    texts = [item.documents for item in items]
    with stage_run(STAGE, config, inputs=identities, output=output, options=options, texts=texts) as run:
        if not run.finished:
            total = folders[0].manifest.records_out
            run.map(_compare_shard, items, _Context(config, run.output), total=total)
            run.once("card", lambda: write_data_card(run.output, STAGE.name))
            run.once("report", lambda: write_report(run.output, config, len(items)))
        return run.finish()


def _shards(links: StageFolder, later: Sequence[StageFolder]) -> list[_Shard]:
    """Return the tasks: every stage has a file for each file of links."""
    columns = [links.files("expected-"), later[0].files("pages-", ".parquet")]
    columns += [later[-1].files("documents-", ".parquet"), *(stage.files("dropped-", ".parquet") for stage in later)]
    return [
        _Shard(index, expected, pages, tuple(drops), documents)
        for index, (expected, pages, documents, *drops) in enumerate(zip(*columns, strict=True))
    ]


@dataclasses.dataclass(frozen=True)
class _Context:
    """The context of the tasks."""

    config: RehydrateConfig
    output: str


def _compare_shard(shard: _Shard, context: _Context) -> TaskResult:
    """Write the verdicts of a shard, and the documents that are kept, with the ids of the release."""
    config, output, rows = context.config, context.output, _expected_rows(shard)
    documents = DocumentShard(shard.index, (shard.documents,))
    schema = inputs.document_schema(documents)
    with (
        shards.write_shard(output, shards.shard_name("documents", shard.index), schema) as kept,
        shards.write_shard(output, shards.shard_name("verdicts", shard.index), VERDICT_SCHEMA) as written,
    ):
        verdicts = _Verdicts(written)
        for batch in inputs.read_documents(documents, Drops()):
            ids, is_kept = [], []
            for url, digest, sketch in _texts(batch):
                row = verdicts.skip_gone(rows, url)
                verdict, jaccard = _compare(row, digest, sketch, config.near)
                verdicts.add(row, verdict, jaccard)
                ids.append(row["id"])
                is_kept.append(verdict in config.verdict)
            index = schema.get_field_index("id")
            batch = batch.set_column(index, schema.field(index), pa.array(ids, schema.field(index).type))
            kept.write_batch(batch.filter(pa.array(is_kept, pa.bool_())))
        verdicts.skip_gone(rows, None)
    totals = verdicts.tally.verdicts
    dropped = {verdict: count for verdict, count in totals.items() if verdict not in config.verdict}
    counts = {verdict: totals[verdict] for verdict in config.verdict}
    files = (kept.entry, written.entry, verdicts.tally.write(output, shard.index))
    return TaskResult(totals.total(), kept.records, dropped, counts, files)


class _Verdicts:
    """Writes and tallies verdicts in the order of the links."""

    def __init__(self, written: shards.ShardWriter) -> None:
        self._written = written
        self.tally = VerdictTally()

    def add(self, row: Row, verdict: str, jaccard: float | None = None) -> None:
        """Add the verdict of a document; only one that is gone has a reason."""
        row = {**row, "verdict": verdict, "jaccard": jaccard, "reason": row["reason"] if verdict == GONE else None}
        self._written.write({name: row[name] for name in VERDICT_SCHEMA.names})
        self.tally.add(row)
        progress.advance()

    def skip_gone(self, rows: Iterator[Row], url: str | None) -> Row:
        """Return the row of the next document, whose URL is given; the documents of the rows before it are gone."""
        for row in rows:
            if row["url"] == url:
                return row
            self.add(row, GONE)
        return {}


def _expected_rows(shard: _Shard) -> Iterator[Row]:
    """Yield what the release has of each document, with its page and the reason if there is no text."""
    for file in (shard.expected, shard.pages, *shard.drops):
        file.verify()
    reasons = {
        row["url"]: f"{file.stage}.{row['reason']}"
        for file in shard.drops
        for row in shards.read_rows(file.path, ["url", "reason"])
    }
    expected = shards.read_rows(shard.expected.path, EXPECTED_SCHEMA.names)
    pages = shards.read_rows(shard.pages.path, ["url", "final_url", "source"])
    for row, page in zip(expected, pages, strict=True):
        assert row["url"] == page["url"]
        yield {**row, **page, "reason": reasons.get(row["url"])}


def _texts(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the URL, the hash and the sketch of each text."""
    texts, urls = batch.column("text"), batch.column("url").to_pylist()
    for url, text, sketch in zip(urls, texts, sketches(texts).to_pylist(), strict=True):
        yield url, hashlib.sha256(text.as_buffer()).digest(), sketch


def _compare(row: Row, digest: bytes, sketch: bytes, near: float) -> tuple[str, float]:
    """Return the verdict of a text, and the estimated Jaccard similarity to that of the release."""
    if row["text_sha256"] == digest:
        return EXACT, 1.0
    [jaccard] = estimate_jaccard(pa.array([row["sketch"]], SKETCH_TYPE), pa.array([sketch], SKETCH_TYPE)).tolist()
    return NEAR if jaccard >= near else CHANGED, jaccard
