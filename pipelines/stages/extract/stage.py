"""Extracts the main text of pages: of a fetch, of WARC files, or of files of HTML."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.algorithms.web.urls import registered_domain
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.compression import strip_compression
from pipelines.core.drops import Drops
from pipelines.core.journal import is_unfinished
from pipelines.core.manifest import has_manifest, read_manifest
from pipelines.core.records import DOCUMENT_SCHEMA, DROPPED_SCHEMA
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.stages.extract.child import Limits, PageReader, PageText, page_reader
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.extractors import EXTRACTORS, extractor_version
from pipelines.stages.extract.pages import SourcePage, read_pages
from pipelines.stages.extract.sources import FetchedShard, HtmlFiles, Source, WarcFile

STAGE = Stage("extract", 2)

_HTML_SUFFIXES = (".html", ".htm", ".xhtml")
_WARC_SUFFIXES = (".warc",)
_HTML_FILES_A_TASK = 1000
# Plain text is taken as it is, by whatever extractor HTML is read.
_PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class _Task:
    index: int
    source: Source
    config: ExtractConfig
    output: str

    @property
    def name(self) -> str:
        return f"documents-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class _Input:
    sources: tuple[Source, ...]
    fingerprints: dict[str, str]
    records: int | None
    note: str | None = None


def extract(
    config: ExtractConfig, *, pages: str | Sequence[str], links: str | None, output: str, options: RunOptions
) -> Summary:
    """Write a document for every page whose text is found, and a list of the pages that gave none.

    `pages` is the folder of `webtext fetch`, or files, folders or globs of `.warc`, `.warc.gz`, `.html` and `.htm`;
    `links` is the folder of `webtext scrape` that the fetch read, for score, submissions and title (None: unknown).
    Records in are the pages with outcome `ok`, or the response records, or the files. Paper, section 2.1.
    """
    source = _open_input([pages] if isinstance(pages, str) else list(pages), links)
    tasks = [_Task(index, each, config, output) for index, each in enumerate(source.sources)]
    # Another version of the parser finds other text, so it is part of what a result is.
    fingerprints = {**source.fingerprints, "extractor": extractor_version(config.extractor)}
    with stage_run(STAGE, config, fingerprints, output, options) as run:
        if not run.finished:
            if source.note is not None:
                run.note(source.note)
            run.map(_extract_shard, tasks, total=source.records)
        return run.finish()


def _open_input(paths: list[str], links: str | None) -> _Input:
    if len(paths) == 1 and not storage.is_glob(paths[0]) and (has_manifest(paths[0]) or _is_begun(paths[0])):
        return _fetched_input(paths[0], links)
    files = inputs.expand_paths(paths, (*_HTML_SUFFIXES, *_WARC_SUFFIXES))
    warcs = [path for path in files if strip_compression(path).endswith(_WARC_SUFFIXES)]
    html = _with_ids([path for path in files if path not in set(warcs)])
    groups = [html[start : start + _HTML_FILES_A_TASK] for start in range(0, len(html), _HTML_FILES_A_TASK)]
    sources: list[Source] = [*map(WarcFile, warcs), *(HtmlFiles(tuple(group)) for group in groups)]
    ids = hashlib.sha256(json.dumps([id for _, id in html]).encode()).hexdigest()
    fingerprint = f"{inputs.fingerprint_files(files)} {ids}" if html else inputs.fingerprint_files(files)
    return _Input(tuple(sources), {"pages": fingerprint}, None if warcs else len(html))


def _is_begun(path: str) -> bool:
    return is_unfinished(path)


def _fetched_input(folder: str, links: str | None) -> _Input:
    fetched = inputs.open_stage(folder, ["fetch"])
    scraped = inputs.open_stage(links, ["scrape"]) if links is not None else None
    link_files = scraped.files("links-", ".parquet") if scraped else []
    # A fetch of the links of scrape has a shard for each of theirs; one of a list of URLs is shared out otherwise.
    read_then = fetched.manifest.identity.inputs.get("links")
    in_order = scraped is not None and read_then == scraped.fingerprint
    warcs = [*fetched.files("pages-", ".warc.gz"), *fetched.files("pages-", ".warc")]
    sources = tuple(
        FetchedShard(
            folder,
            file,
            tuple(_with_number(warcs, file)),
            tuple(_with_number(link_files, file) if in_order else link_files),
            in_order,
        )
        for file in fetched.files("pages-", ".parquet")
    )
    fingerprints = {"pages": fetched.fingerprint} | ({"links": scraped.fingerprint} if scraped else {})
    note = _note_on_links(folder, links, in_order) if read_then is not None else None
    return _Input(sources, fingerprints, fetched.manifest.records_out, note)


def _note_on_links(folder: str, links: str | None, in_order: bool) -> str | None:
    if links is None:
        return f"{folder}: was fetched from links of scrape; without --links documents have no score and no submissions"
    return None if in_order else f"{links}: the pages were fetched from other links; those without one are counted"


def reads_scrape(folder: str) -> bool:
    """Tell whether a folder is a finished fetch of the links of `webtext scrape`, and not of a list of URLs."""
    return has_manifest(folder) and "links" in read_manifest(folder).identity.inputs


def _with_number(files: Sequence[inputs.InputFile], like: inputs.InputFile) -> list[inputs.InputFile]:
    return [file for file in files if _number(file) == _number(like)]


def _number(file: inputs.InputFile) -> str:
    """Return the shard number in a name such as `pages-00003.warc.gz` or `pages-00003-00001.warc.gz`."""
    return storage.basename(file.path).split("-")[1].split(".")[0]


def _with_ids(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Return each path with the part of it below the folder that all paths have in common."""
    parts = [path.split("/") for path in paths]
    shared = 0
    while parts and all(len(each) > shared + 1 and each[shared] == parts[0][shared] for each in parts):
        shared += 1
    # `basename` of each part, since it writes what is not UTF-8 so that a document can hold it.
    return [(path, "/".join(map(storage.basename, each[shared:]))) for path, each in zip(paths, parts, strict=True)]


def _extract_shard(task: _Task) -> TaskResult:
    limits = Limits(task.config.timeout_s, task.config.memory_mb)
    with (
        shards.write_shard(task.output, shards.shard_name("documents", task.index), DOCUMENT_SCHEMA) as kept,
        shards.write_shard(task.output, shards.shard_name("dropped", task.index), DROPPED_SCHEMA) as dropped,
        page_reader(EXTRACTORS[task.config.extractor], limits) as reader,
    ):
        drops = Drops(dropped.writer)
        pages = without_link = 0
        for page, document in _documents(task, reader, drops):
            pages += 1
            without_link += page.link is None
            if document is not None:
                kept.writer.write(document)
            progress.advance()
    return TaskResult(
        records_in=pages,
        records_out=kept.writer.records,
        dropped=drops.counts,
        counts={"without_link": without_link} if _has_links(task.source) else {},
        files=(kept.entry, dropped.entry),
    )


def _has_links(source: Source) -> bool:
    return isinstance(source, FetchedShard) and bool(source.links)


def _documents(task: _Task, reader: PageReader, drops: Drops) -> Iterator[tuple[SourcePage, dict[str, Any] | None]]:
    """Yield each page of a task with its document, or with None, counted, where it gives none."""
    for page in read_pages(task.source):
        found = reader.read(page.raw) if page.raw is not None else PageText(problem=page.problem, detail=page.detail)
        words = len(found.text.split())
        reason, detail = _reason_to_drop(found, words, task.config)
        if reason is not None:
            drops.add(reason, page.id, page.url, detail)
            yield page, None
        else:
            yield page, _document(page, found, words, task.config.extractor)


def _reason_to_drop(found: PageText, words: int, config: ExtractConfig) -> tuple[str | None, str | None]:
    if found.problem is not None:
        return found.problem, found.detail
    if config.language is not None and found.language not in (None, config.language.lower()):
        return "other_language", found.language
    if words == 0:
        return "empty_text", None
    if words < config.min_words:
        return "too_short", f"{words} words"
    return None, None


def _document(page: SourcePage, found: PageText, words: int, extractor: str) -> dict[str, Any]:
    link = page.link or {}
    return {
        "id": page.id,
        "url": page.url,
        "final_url": page.final_url,
        "domain": link.get("domain") or (registered_domain(page.url) if page.url else None),
        "title": found.title or link.get("title") or None,
        "text": found.text,
        "language": found.language,
        "score": link.get("score"),
        "submission_ids": link.get("submission_ids"),
        "subreddits": link.get("subreddits"),
        "created_utc": link.get("created_utc"),
        "fetched_at": page.fetched_at,
        "extractor": _PLAIN if found.plain else extractor,
        "words": words,
        "warc_file": page.warc_file,
        "warc_offset": page.warc_offset,
    }
