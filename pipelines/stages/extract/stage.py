"""Extracts the main text of pages: of a fetch, of WARC files, or of HTML files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines import progress, storage
from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.manifest import has_manifest, read_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import UsageError
from pipelines.extras import require_extra
from pipelines.records import input_paths, inputs, shards
from pipelines.records.data_card import DATA_CARD, write_data_card
from pipelines.records.document_filter import count_words
from pipelines.records.drops import Drops
from pipelines.records.removals import REMOVED, Removals, read_removals
from pipelines.records.schemas import DOCUMENT_SCHEMA, DROPPED_SCHEMA
from pipelines.records.wishes import read_honor
from pipelines.stages.extract.child import Limits, PageReader, PageText
from pipelines.stages.extract.config import LANGUAGES, ExtractConfig
from pipelines.stages.extract.extractors import extractor_of, extractor_version
from pipelines.stages.extract.pages import (
    OF_LINK,
    OF_METADATA,
    OF_PAGE,
    OF_TEXT,
    PLAIN,
    FetchedShard,
    Source,
    SourcePage,
    contain_documents,
    known_documents,
    read_pages,
)
from pipelines.stages.extract.report import PAGE, PageTally, write_report
from pipelines.storage.compression import strip_compression

STAGE = Stage("extract", 11, (PAGE, DATA_CARD), grows=("pages", "links"))

# HTML files become 64 tasks, enough for the workers of most machines, if the tasks are neither tiny nor large. The
# number of workers must not matter: the shards are part of the result. An empty file costs some time, too.
_HTML_TASKS = 64
_HTML_BYTES_PER_TASK = (16 << 20, 64 << 20)
_BYTES_PER_FILE = 64 << 10
# A child takes up to a second to start, so a process keeps it for all of its tasks.
_reader_of_process = functools.cache(PageReader)


def extract(
    config: ExtractConfig, *, pages: str | Sequence[str], links: str | None, output: str, options: RunOptions
) -> Summary:
    """Write a document for every page with text, and a list of the other pages.

    `pages` are folders of `webtext fetch`, and files, folders or globs of `.warc`, `.arc` (also compressed) and HTML;
    `links` is the folder of `webtext scrape` that was fetched, for score, submissions and title (None: unknown).
    Records in are the pages with outcome `ok`, the response records, or the files. Raises InputError if there are no
    pages, for a damaged WARC, and for `links` that do not belong to the pages. Paper, section 2.1.
    """
    language = (config.declared_language or "").lower()
    if language not in ("", *LANGUAGES) and not re.fullmatch("[a-z]{3}", language):
        raise UsageError(f"--declared-language {language}: unknown language; use a code of ISO 639, such as en")
    if config.extractor != "fast":
        require_extra(config.extractor, f"--extractor {config.extractor}", config.extractor)
    read_honor(config.honor)  # raises for unknown signals
    sources, fingerprints, records, notes = open_input([pages] if isinstance(pages, str) else list(pages), links)
    # Another version of the parser extracts other text, so it is part of the identity of the result.
    fingerprints["extractor"] = extractor_version(config.extractor)
    with stage_run(STAGE, config, inputs=fingerprints, output=output, options=options) as run:
        run.text_format = config.format
        if run.earlier and not run.may_lose and not contain_documents(run.earlier, sources):
            raise run.refuse_addition()
        if not run.finished:
            for note in notes:
                run.note(note)
            items = list(enumerate(sources))
            with contextlib.closing(_page_reader(config)):
                run.map(
                    _extract_source,
                    items,
                    _Context(config, run.output, records, run.earlier, read_removals(storage.parent(output))),
                    name=lambda item: f"documents-{item[0]:05d}",
                    total=records,
                )
            run.once("report", lambda: write_report(run.output, config.extractor, len(items)))
            run.once("card", lambda: write_data_card(run.output, STAGE.name))
        return run.finish()


def reads_scrape(folder: str) -> bool:
    """Return whether a folder is a finished fetch of the links of `webtext scrape`, not of a list of URLs."""
    return has_manifest(folder) and "links" in read_manifest(folder).identity.inputs


def open_input(paths: list[str], links: str | None) -> tuple[list[Source], dict[str, str], int | None, list[str]]:
    """Return what the tasks read, the fingerprints of the inputs, the number of records if known, and notes."""
    folders, others = inputs.separate_stages(paths)
    fetches = [inputs.open_stage(folder, ["fetch"]) for folder in folders]
    scrape = inputs.open_stage(links, ["scrape"]) if links is not None and fetches else None
    passed_over: list[str] = []
    files = input_paths.expand_paths(others, input_paths.PAGE_SUFFIXES, notes=passed_over)
    fetched = [file.path for fetch in fetches for file in _warcs_of(fetch)]
    all_names = storage.names_below_common_folder([*fetched, *files])
    names = dict(zip([*fetched, *files], all_names, strict=True))
    own = [inputs.InputFile(path, storage.size_bytes(path), relative_path=names[path]) for path in files]
    warcs = [file for file in own if strip_compression(file.path).endswith(input_paths.ARCHIVE_SUFFIXES)]
    html = [file for file in own if not strip_compression(file.path).endswith(input_paths.ARCHIVE_SUFFIXES)]
    sources: list[Source] = [shard for fetch in fetches for shard in _fetched_shards(fetch, scrape, names)]
    sources += [*warcs, *_html_tasks(html)]
    pages = [fetch.manifest.fingerprint() for fetch in fetches] + ([inputs.fingerprint_files(files)] if files else [])
    if len(fetches) != 1 or files:
        # The names are ids and values of `warc_file`.
        pages.append(hashlib.sha256(json.dumps(all_names).encode()).hexdigest())
    fingerprints = {"pages": " ".join(pages)} | ({"links": scrape.manifest.fingerprint()} if scrape else {})
    records = None if warcs else len(html) + sum(fetch.manifest.records_out for fetch in fetches)
    notes = [note for fetch in fetches for note in _notes(fetch, scrape)]
    return sources, fingerprints, records, [*passed_over, *notes]


def _html_tasks(files: list[inputs.InputFile]) -> Iterator[tuple[inputs.InputFile, ...]]:
    """Divide HTML files into those of each task."""
    *starts, total = itertools.accumulate((file.size_bytes + _BYTES_PER_FILE for file in files), initial=0)
    least, most = _HTML_BYTES_PER_TASK
    task_bytes = min(most, max(least, total // _HTML_TASKS))
    tasks = itertools.groupby(zip(starts, files, strict=True), key=lambda file: file[0] // task_bytes)
    return (tuple(file for _, file in task) for _, task in tasks)


def _warcs_of(fetch: inputs.StageFolder) -> list[inputs.InputFile]:
    return [*fetch.files("pages-", ".warc.gz"), *fetch.files("pages-", ".warc")]


def _fetched_shards(
    fetch: inputs.StageFolder, scrape: inputs.StageFolder | None, names: dict[str, str]
) -> Iterator[FetchedShard]:
    warcs = tuple(dataclasses.replace(file, relative_path=names[file.path]) for file in _warcs_of(fetch))
    links = tuple(scrape.files("links-", ".parquet") if scrape else ())
    in_order = scrape is not None and _is_fetch_of(fetch, scrape)
    for pages in fetch.files("pages-", ".parquet"):
        number = shards.shard_number(pages.path)
        same = tuple(file for file in links if not in_order or shards.shard_number(file.path) == number)
        yield FetchedShard(fetch.path, pages, warcs, same, in_order)


def _is_fetch_of(fetch: inputs.StageFolder, scrape: inputs.StageFolder) -> bool:
    """Return whether a fetch has a shard for each shard of these links; one of a URL list is divided differently."""
    return fetch.manifest.identity.inputs.get("links") == scrape.manifest.fingerprint()


def _notes(fetch: inputs.StageFolder, scrape: inputs.StageFolder | None) -> Iterator[str]:
    if "links" not in fetch.manifest.identity.inputs:
        return
    if scrape is None:
        missing = "without --links, documents have no scores or submissions"
        yield f"{fetch.path}: was fetched from links of scrape; {missing}"
    elif not _is_fetch_of(fetch, scrape):
        yield f"{scrape.path}: the pages were fetched from other links; pages without a link are counted"


def _page_reader(config: ExtractConfig) -> PageReader:
    return _reader_of_process(extractor_of(config), Limits(config.timeout, config.memory_limit_mib))


@dataclasses.dataclass(frozen=True)
class _Context:
    """The context of the tasks; `earlier` is the folder of a result for some of the pages."""

    config: ExtractConfig
    output: str
    records: int | None
    earlier: str | None
    removals: Removals


def _extract_source(item: tuple[int, Source], context: _Context) -> TaskResult:
    (index, source), config, output = item, context.config, context.output
    reader = _page_reader(config)
    tally = PageTally(context.records)
    earlier = known_documents(context.earlier, index, source) if context.earlier else iter(())
    # The report shows the blocks of the candidates, which documents do not have.
    known = (document for document in earlier if not tally.is_candidate(document["id"]))
    with (
        shards.write_shard(output, shards.shard_name("documents", index), DOCUMENT_SCHEMA) as kept,
        shards.write_shard(output, shards.shard_name("dropped", index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.write)
        pages_without_link = 0
        agents = read_honor(config.honor).agents
        for page, extracted in reader.extract((page, tally.mark(page)) for page in read_pages(source, known=known)):
            extracted = page.add_signals(extracted, agents)
            page = page.with_declared_url(extracted)
            pages_without_link += page.link is None
            row = {"id": page.id, "url": page.url, "final_url": page.final_url, "text": extracted.text}
            if context.removals and context.removals.find_row({**(page.link or {}), **row}) is not None:
                page, extracted = dataclasses.replace(page, url=None), PageText(problem=REMOVED)
            words = count_words(extracted.text)
            reason, detail = drop_reason(extracted, words, config)
            tally.add(page, extracted, words, reason)
            if reason is None:
                kept.write(_document(page, extracted, words, config.extractor))
            else:
                drops.add(reason, page.id, page.url, detail)
            progress.advance()
    has_links = isinstance(source, FetchedShard) and bool(source.links)
    counts = {"pages_without_link": pages_without_link} if has_links else {}
    return drops.task_result(kept.records, (kept.entry, dropped.entry, tally.write(output, index)), counts)


def drop_reason(text: PageText, words: int, config: ExtractConfig) -> tuple[str | None, str | None]:
    """Return why a page is dropped, and the detail of the reason; None if it is kept."""
    if text.problem is not None:
        return text.problem, text.detail
    if wish := read_honor(config.honor).find(text.signals or ()):
        return wish
    if config.declared_language is not None and text.language not in (None, config.declared_language.lower()):
        return "other_language", text.language
    if text.rejection is not None and not config.keep_non_documents:
        return text.rejection
    if words == 0:
        return "empty_text", text.detail or "no text was found"
    if words < config.min_words:
        return "too_short", f"{words} words"
    return None, None


def _document(page: SourcePage, text: PageText, words: int, extractor: str) -> dict[str, Any]:
    link = page.link or {}
    return {
        **{name: getattr(page, name) for name in OF_PAGE},
        **{name: getattr(text, name) for name in OF_TEXT},
        **{name: getattr(text.metadata, name) for name in OF_METADATA},
        **{name: link.get(name) for name in OF_LINK},
        "domain": link.get("domain") or (registered_domain(page.url) if page.url else None),
        "title": text.title or link.get("title") or None,
        "extractor": PLAIN if text.plain else extractor,
        "words": words,
    }
