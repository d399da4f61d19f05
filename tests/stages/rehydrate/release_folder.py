"""A small web, a corpus of its pages, and a release folder of that corpus, as `webtext release` describes it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from local_web import LocalWeb
from small_web import words_text

from pipelines.algorithms.minhash.sketch import SKETCH_TYPE, sketches
from pipelines.corpus.rehydration import rehydrate_release
from pipelines.engine.executor import make_executor
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.progress import Silent
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.stage import extract
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.stage import filter as filter_stage

QUICK = {"allow_private_addresses": True, "per_host_delay": 0.0, "retries": 0, "timeout": 5.0}
HOSTS = ("alpha.com", "beta.org", "sub.beta.org", "gamma.co.uk")
URLS = [f"http://{host}/page-{page}.html" for host in HOSTS for page in range(3)]
URL_SCHEMA = pa.schema(
    {
        "id": pa.string(), "url": pa.string(), "domain": pa.string(), "title": pa.string(), "score": pa.int64(),
        "submission_ids": pa.list_(pa.string()), "subreddits": pa.list_(pa.string()), "created_utc": pa.int64(),
        "source": pa.string(), "fetched_at": pa.timestamp("ms"), "captured_at": pa.timestamp("ms"),
        "outcome": pa.string(), "words": pa.int64(), "text_sha256": pa.binary(32), "sketch": SKETCH_TYPE,
    }
)  # fmt: skip


def page(words: str) -> bytes:
    """Return a page with these words as its text."""
    parts = words.split()
    paragraphs = "".join(f"<p>{' '.join(parts[at : at + 40])}.</p>" for at in range(0, len(parts), 40))
    return (
        f"<html><head><title>A page</title></head><body><article><h1>A page</h1>{paragraphs}</article></body>".encode()
    )


def words_of(url: str) -> str:
    """Return the words of a page of the web."""
    return words_text(URLS.index(url), 240)


def small_web() -> dict[str, Any]:
    """Return the pages by URL."""
    return {url: page(words_of(url)) for url in URLS}


def make_corpus(folder: Path, profile: Sequence[str] = ()) -> Path:
    """Write a corpus of the small web with the stages fetch, extract and, with a profile, filter."""
    urls = folder / "urls.txt"
    folder.mkdir()
    urls.write_text("\n".join(URLS))
    options = RunOptions()
    with LocalWeb(small_web()) as web, web.as_proxy():
        fetch(FetchConfig(**QUICK), links=str(urls), output=f"{folder}/fetch", options=options)
    extract(ExtractConfig(), pages=f"{folder}/fetch", links=None, output=f"{folder}/extract", options=options)
    if profile:
        config = FilterConfig(profile=tuple(profile), set=("too_few_sentences=1",))
        filter_stage(config, documents=f"{folder}/extract", output=f"{folder}/filter", options=options)
    return folder


def rows_of(folder: Path, prefix: str) -> list[dict[str, Any]]:
    """Return the rows of the numbered files of a folder."""
    return [row for path in sorted(folder.glob(f"{prefix}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def url_rows(corpus: Path) -> list[dict[str, Any]]:
    """Return the rows of the tables of URLs, one per document of the last stage."""
    last = next(corpus / name for name in ("filter", "extract") if (corpus / name).is_dir())
    rows = []
    for number, document in enumerate(rows_of(last, "documents")):
        [sketch] = sketches(pa.array([document["text"]])).to_pylist()
        row = {name: document.get(name) for name in URL_SCHEMA.names} | {"submission_ids": [f"s{number}"]}
        row |= {"outcome": "kept", "score": number, "subreddits": ["news"], "created_utc": 1451606400 + number}
        row |= {"text_sha256": hashlib.sha256(document["text"].encode()).digest(), "sketch": sketch}
        rows.append(row | {"fetched_at": document["fetched_at"].replace(tzinfo=None)})
    return rows


def write_release(
    folder: Path, corpus: Path, rows: Sequence[Mapping[str, Any]] | None = None, tables: int = 3, **changes: Any
) -> Path:
    """Write a release of a corpus; `rows` replace those of its documents, `changes` values of its description."""
    rows = url_rows(corpus) if rows is None else rows
    (folder / "urls").mkdir(parents=True)
    stages = {path.parent.name: read_manifest(str(path.parent)) for path in sorted(corpus.glob("*/manifest.json"))}
    description = {
        "format": 1, "name": "small", "version": "1.0.0", "previous": None, "why": "first", "license": "CC0-1.0",
        "changes": {"added": len(rows), "removed": 0, "changed": 0}, "date": "2026-11-28", "texts": False,
        "redacted": [], "text_format": "text",
        "stages": {
            name: {
                "version": manifest.identity.version, "config": manifest.identity.config,
                "inputs": manifest.identity.inputs, "records_in": manifest.records_in,
                "records_out": manifest.records_out, "dropped": manifest.dropped,
            }
            for name, manifest in stages.items()
        },
    }  # fmt: skip
    (folder / "release.json").write_text(json.dumps({**description, **changes}))
    # Not by domain: rows of one domain are in several tables.
    for number in range(tables):
        table = pa.Table.from_pylist([dict(row) for row in rows[number::tables]], URL_SCHEMA)
        pq.write_table(table, folder / f"urls/urls-{number:05d}.parquet")
    write_checksums(folder)
    return folder


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of the files of a release."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "SHA256SUMS"]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def stages_of(release: Path) -> dict[str, Any]:
    """Return the stages that a release records."""
    stages: dict[str, Any] = json.loads((release / "release.json").read_text())["stages"]
    return stages


class Notes(Silent):
    """Collects notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


def run(
    release: Path, corpus: Path, web: Mapping[str, Any] | None = None, *, workers: int = 1, **options: Any
) -> tuple[Summary, list[str]]:
    """Rehydrate a release from a web; return the summary of the last stage, and the notes."""
    any_version, overwrite = options.pop("any_version", False), options.pop("overwrite", False)
    notes = Notes()
    run_options = RunOptions(make_executor(workers), overwrite=overwrite, progress=notes)
    with contextlib.ExitStack() as stack:
        if options.get("source") != "archives":
            server = stack.enter_context(LocalWeb(small_web() if web is None else web))
            stack.enter_context(server.as_proxy())
        stages = rehydrate_release(str(release), str(corpus), run_options, {**QUICK, **options}, any_version)
        return list(stages)[-1], notes.lines


def verdicts(corpus: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of verdicts by URL."""
    return {row["url"]: row for row in rows_of(corpus / "rehydrate", "verdicts")}


def contents(folder: Path, names: Iterator[Path] | None = None) -> dict[str, bytes]:
    """Return the files of a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(names or folder.iterdir()) if path.is_file()}
