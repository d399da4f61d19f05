"""The table of the contract tests: a small run of every stage, each on the output of the stages before it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from warcio.archiveiterator import ArchiveIterator

from pipelines.engine.config import make_config
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.pipeline import BY_NAME, PIPELINE

TINY_MODEL = [
    "layers=1", "width=16", "heads=2", "context=16", "steps=8", "warmup_steps=2", "batch_size=4", "micro_batch=2",
    "eval_every=4", "eval_blocks=2",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """How the contract runs a stage: its config, and a change of it that gives a different result."""

    config: Mapping[str, Any]
    changed: Mapping[str, Any]


CASES = {
    "scrape": Case({"shards": 3}, {"min_score": 5}),
    "fetch": Case({"per_host_delay": 0.0, "concurrency": 4}, {"max_page_bytes": 500_000}),
    # The processes of killed runs are forks that have the addresses of all that any stage imports.
    "extract": Case({"memory_limit_mib": 16_384}, {"extractor": "trafilatura"}),
    "filter": Case({"redact": ["email", "ip", "phone"]}, {"set": ["too_short=150"]}),
    "dedup": Case({}, {"threshold": 0.5}),
    "remove-wikipedia": Case({}, {"extra_domain": ["example.org"]}),
    "train-bpe": Case({"vocab_size": 400}, {"vocab_size": 380}),
    "tokenize": Case({"held_out": 0.3, "shard_tokens": 4000}, {"format": "llmc"}),
    "pretrain": Case(
        {"preset": "tiny", "set": TINY_MODEL, "device": "cpu", "threads": 1, "checkpoint_every": 2}, {"seed": 1}
    ),
    "overlap-index": Case({}, {"ngram": 5}),
    "overlap-report": Case({}, {"ngram": 5}),
    "search": Case({}, {"document": "line"}),
}


def stage_names() -> list[str]:
    """Return every stage, in pipeline order."""
    return [stage.name for stage in PIPELINE]


def run_stage(
    corpus: Path, name: str, output: Path | str, options: RunOptions, upstream: str = "", **changed: Any
) -> Summary:
    """Run one stage on the inputs in the corpus folder, and on the stages before it there or in `upstream`."""
    stage = BY_NAME[name]
    config = make_config(stage.config_type(), {**CASES[name].config, **changed}, {}, str)
    read: dict[str, Any] = {parameter: f"{upstream or corpus}/{source}" for parameter, source in stage.reads.items()}
    if stage.files == "dumps":
        read["dumps"] = sorted(str(path) for path in (corpus / "dumps").iterdir())
    if stage.files == "benchmarks":
        read["benchmarks"] = [f"sentences={corpus / 'sentences.jsonl'}"]
    return stage.load()(config, **read, output=str(output), options=options)


def outcome(folder: Path) -> dict[str, str]:
    """Return hashes of a stage's files, by name, that equal results share.

    They cover every byte, except for fetch, whose records contain times: there the rows without times, and the pages.
    """
    manifest = read_manifest(str(folder))
    if manifest.identity.stage == "fetch":
        pages = [file.name for file in manifest.files if file.name.startswith("pages-")]
        return {name: _fetched(folder / name) for name in pages if name.endswith(".parquet")}
    names = ["manifest.json", *(file.name for file in manifest.files)]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _fetched(path: Path) -> str:
    rows = pq.read_table(path).to_pylist()
    now = dt.datetime.now(dt.UTC)
    assert all(now - dt.timedelta(hours=1) < row.pop("fetched_at") <= now for row in rows)
    assert all((row["warc_offset"] is not None) == (row["outcome"] == "ok") for row in rows)
    pages = [_stored_page(path.parent, row["warc_file"], row.pop("warc_offset")) for row in rows]
    return json.dumps([{**row, "page": page} for row, page in zip(rows, pages, strict=True)])


def _stored_page(folder: Path, name: str | None, offset: int | None) -> str | None:
    if name is None or offset is None:
        return None
    with (folder / name).open("rb") as stream:
        stream.seek(offset)
        record = next(iter(ArchiveIterator(stream)))
        assert record.rec_type == "response"
        return hashlib.sha256(record.content_stream().read()).hexdigest()


def leftovers(folder: Path, beside: Sequence[str] = ()) -> list[str]:
    """Return the names in a finished folder that its manifest does not list."""
    known = {"manifest.json", ".lock", *beside, *(file.name for file in read_manifest(str(folder)).files)}
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if name not in known and name.split("/")[0] not in beside)
