"""Folders as scrape and fetch write them, for the tests of extract, and its results read back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import uuid
from pathlib import Path

import pyarrow.parquet as pq

from pipelines.engine import manifest
from pipelines.engine.executor import make_executor
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import RunOptions
from pipelines.progress import Silent
from pipelines.records import shards
from pipelines.records.schemas import LINK_SCHEMA, PAGE_SCHEMA
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.stage import extract

FETCHED_AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
SENTENCE = "The river {} rises in the hills above the town and runs for many miles before it meets the sea. "


def html_page(name: str, *, lang: str | None = None, sentences: int = 12) -> str:
    attribute = f' lang="{lang}"' if lang else ""
    paragraphs = "".join(f"<p>{SENTENCE.format(f'{name} {i}') * 2}</p>" for i in range(sentences))
    head = f"<head><title>About {name}</title></head>"
    menu = "<nav><a href=/>Home</a></nav>"
    article = f"<article><h1>River {name}</h1>{paragraphs}</article>"
    return f"<!doctype html><html{attribute}>{head}<body>{menu}{article}</body></html>"


def link_row(url: str, score: int = 5) -> dict[str, object]:
    return {
        "url": url,
        "original_url": url,
        "domain": "example.org",
        "score": score,
        "submission_ids": ["a1", "b2"],
        "subreddits": ["rivers", "maps"],
        "title": f"Link to {url}",
        "created_utc": 1_400_000_000 + score,
        "over_18": False,
    }


def write_stage(
    folder: Path, stage: str, files: list[FileEntry], records: int, inputs: dict[str, str] | None = None
) -> None:
    identity = manifest.Identity(stage, 1, {}, inputs or {})
    entry = manifest.ShardEntry("shards", "all", records, records, files=tuple(files))
    manifest.write_manifest(str(folder), manifest.Manifest(identity, (entry,)))


def write_links(folder: Path, urls_by_shard: list[list[str]]) -> Path:
    files = []
    for index, urls in enumerate(urls_by_shard):
        with shards.write_shard(str(folder), shards.shard_name("links", index), LINK_SCHEMA) as shard:
            for number, url in enumerate(urls):
                shard.write(link_row(url, 10 * index + number + 3))
        files.append(shard.entry)
    write_stage(folder, "scrape", files, sum(map(len, urls_by_shard)))
    return folder


def warc_bytes(responses: list[tuple[str, bytes, list[tuple[str, str]]]]) -> tuple[bytes, list[int]]:
    """Return a `.warc.gz` of responses (URL, payload, HTTP headers), and the offset of each record."""
    data, offsets = b"", []
    for url, payload, headers in responses:
        offsets.append(len(data))
        http = "".join(f"{name}: {value}\r\n" for name, value in headers)
        block = f"HTTP/1.1 200 OK\r\n{http}\r\n".encode() + payload
        head = (
            f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2026-01-02T03:04:05Z\r\n"
            f"WARC-Record-ID: <urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, url)}>\r\n"
            f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
        )
        data += gzip.compress(head.encode() + block + b"\r\n\r\n", mtime=0)
    return data, offsets


HTML_HEADERS = [("Content-Type", "text/html; charset=utf-8")]


def write_pages(folder: Path, shards_of_pages: list[list[tuple[str, bytes, list[tuple[str, str]]]]]) -> Path:
    """Write a folder as `webtext fetch` does; each shard ends with a link that was not fetched."""
    files, records = [], 0
    for index, responses in enumerate(shards_of_pages):
        name = shards.shard_name("pages", index, "warc.gz")
        data, offsets = warc_bytes(responses)
        with shards.write_shard(str(folder), shards.shard_name("pages", index), PAGE_SCHEMA) as shard:
            for (url, payload, _), offset in zip(responses, offsets, strict=True):
                shard.write(page_row(url, "ok", len(payload), name, offset))
            shard.write(page_row(f"http://gone.example/{index}", "dropped.http_404", 0, None, None))
        files += [shard.entry, shards.write_file(str(folder), name, data)]
        records += len(responses)
    write_stage(folder, "fetch", files, records)
    return folder


def page_row(url: str, outcome: str, size: int, warc_file: str | None, offset: int | None) -> dict[str, object]:
    return {
        "url": url,
        "final_url": url + "?seen",
        "status": 200,
        "outcome": outcome,
        "source": "live",
        "fetched_at": FETCHED_AT,
        "bytes": size,
        "warc_file": warc_file,
        "warc_offset": offset,
    }


def rows(folder: Path, noun: str) -> list[dict[str, object]]:
    return [row for path in sorted(folder.glob(f"{noun}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def run(
    pages, output: Path, links: Path | None = None, workers: int = 1, follow_inputs: tuple[str, ...] = (), **settings
):
    options = RunOptions(make_executor(workers), follow_inputs=follow_inputs)
    inputs = [str(path) for path in pages] if isinstance(pages, list) else str(pages)
    return extract(
        ExtractConfig(**settings), pages=inputs, links=links and str(links), output=str(output), options=options
    )


def write_corpus(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Write two shards of pages and of links; return their folders and the corpus."""
    urls = [[f"http://example.org/{shard}/{page}" for page in range(2)] for shard in range(2)]
    pages = [[(url, html_page(url[-3:]).encode(), HTML_HEADERS) for url in part] for part in urls]
    return write_pages(tmp_path / "fetch", pages), write_links(tmp_path / "scrape", urls), tmp_path


def set_inputs(folder: Path, **read: str) -> None:
    """Write into a manifest what the stage read."""
    recorded = manifest.read_manifest(str(folder))
    identity = dataclasses.replace(recorded.identity, inputs=read)
    manifest.write_manifest(str(folder), dataclasses.replace(recorded, identity=identity))


def fingerprint(folder: Path) -> str:
    return manifest.read_manifest(str(folder)).fingerprint()


def notes_of(pages: Path, links: Path | None, output: Path) -> list[str]:
    notes: list[str] = []
    progress = Silent()
    progress.note = notes.append
    options = RunOptions(progress=progress)
    extract(ExtractConfig(), pages=str(pages), links=links and str(links), output=str(output), options=options)
    return notes
