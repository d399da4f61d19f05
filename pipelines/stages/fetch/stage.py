"""Downloads the page behind every link as WARC, with an outcome for each link."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from pipelines import progress, storage
from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.config import check_known
from pipelines.engine.manifest import Manifest, ShardEntry, has_manifest, read_manifest
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.errors import UsageError
from pipelines.records import shards
from pipelines.records.inputs import fingerprint_files, open_stage
from pipelines.records.removals import REMOVED, read_removals
from pipelines.records.wishes import read_honor
from pipelines.stages.fetch.archives import archives_input, open_pages, query_archives, take_pages
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.crawl import UNREACHED, Crawl, user_agent
from pipelines.stages.fetch.links import LinkShard, classify_links, divide_lists, open_links, read_links
from pipelines.stages.fetch.outcomes import LIVE, NO_REQUEST, NOT_IN_SOURCE, OK, REASONS, Failure, dropped
from pipelines.stages.fetch.report import PAGE, TABLES, write_report
from pipelines.stages.fetch.segments import FetchContext, SegmentWriter, find_known, write_shard_files

ARCHIVES = "archives"
PAGES = "pages"
# In the error if there are no pages.
_SHOWN_DROPS, _SHOWN_CHARACTERS = 3, 200

# Pages change and vanish from the web.
STAGE = Stage("fetch", 1, (PAGE, TABLES), is_irreplaceable=True, grows=("links", "urls", ARCHIVES, PAGES))


def fetch(
    config: FetchConfig, *, links: str | Sequence[str], output: str, options: RunOptions, retry: Sequence[str] = ()
) -> Summary:
    """Fetch the page of every link and write it as WARC, with one row per link that holds its outcome.

    `links` is the folder of scrape, or lists of URLs (files, folders or globs). After an interruption, only the links
    without an outcome on disk are requested. If links were added to those of a finished result, only these are, and
    those that it dropped for a reason in `retry`. Links that are gone are looked up in the archives of the config; with
    files as its source, nothing is requested. Raises InputError if there are no links, WebtextError if there are no
    pages or the network is down, ChangedRunError if links of a finished result are missing. Paper, section 2.1.
    """
    header = user_agent(config)
    if not config.user_agent.strip() or not (header.isascii() and header.isprintable()):
        raise UsageError(f"--user-agent must not be empty, and it and --contact must be printable ASCII: {header!r}")
    read_honor(config.honor)  # raises for unknown signals before any request
    for reason in retry:
        check_known(reason, sorted(REASONS - NO_REQUEST), "reason", "--retry")
    if retry and not has_manifest(output):
        raise UsageError(f"{output}: --retry needs a finished fetch; run the command without it first")
    source = open_links(links)
    inputs = {source.name: source.fingerprint}
    if pages := open_pages(config):
        inputs[PAGES] = fingerprint_files(pages, storage.names_below_common_folder(pages))
    if archives := archives_input(config):
        inputs[ARCHIVES] = archives
    elif has_manifest(output) and (archives := (earlier := read_manifest(output).identity.inputs).get(ARCHIVES)):
        # A run without archives keeps their pages; a later one looks up the links that this one adds or retries.
        is_whole = not retry and inputs.items() <= earlier.items()
        inputs[ARCHIVES] = archives if is_whole else "partial"
    with stage_run(STAGE, config, inputs=inputs, output=output, options=options, reopen=bool(retry)) as run:
        examples = ""
        if not run.finished:
            if not config.contact and not pages:
                run.note("no --contact set: site owners cannot reach you")
            earlier_result = open_stage(run.earlier, ["fetch"]) if run.earlier else None
            removals = read_removals(storage.parent(output))
            context = FetchContext(config, run.output, len(source.shards), earlier_result, retry, removals)
            divide_lists(run, source.shards)
            if earlier_result:
                find_known(run, source.shards, context, may_lose=options.overwrite)
            if config.archive or pages:
                run.map(_crawl_shard, source.shards, context, phase=config.source, work=True, total=source.records)
                if pages:
                    take_pages(run, source.shards, context, pages, inputs[PAGES])
                query_archives(run, source.shards, context)
            # Segments go as soon as their shard is complete, not at the end of the stage, because together they
            # need as much disk space as the result.
            entries = run.map(
                _fetch_shard, source.shards, context, total=source.records,
                on_complete=lambda shard: storage.remove(context.segments_folder(shard)),
            )  # fmt: skip
            if not any(entry.records_out for entry in entries):
                examples = _describe_drops(run.output, entries)
            if earlier_result:
                _note_unreached(run, entries, earlier_result.manifest)
            run.once("report", lambda: write_report(run.output, [shard.index for shard in source.shards]))
        return run.finish(examples=examples)


def _describe_drops(output: str, entries: Sequence[ShardEntry]) -> str:
    """Return the first links that were dropped, with their details."""
    names = (file.name for entry in entries for file in entry.files if file.name.startswith("dropped-"))
    rows = (row for name in names for row in shards.read_rows(storage.join(output, name)))
    first = (f"{row['url'][:_SHOWN_CHARACTERS]} ({row['detail']})" for row in itertools.islice(rows, _SHOWN_DROPS))
    return f", such as {', '.join(first)}; docs/fetch.md explains the reasons"


def _note_unreached(run: StageRun, entries: Sequence[ShardEntry], earlier: Manifest) -> None:
    """Name the remedy if no link that was added or retried was reached: perhaps the local network was down."""
    outcomes = sum((Counter({**entry.dropped, OK: entry.records_out}) for entry in entries), Counter[str]())
    outcomes -= Counter({**earlier.dropped, OK: earlier.records_out})
    unreached = sorted(UNREACHED & outcomes.keys())
    if unreached and outcomes.keys() <= UNREACHED | NO_REQUEST:
        run.note(f"no new request reached a site; if the network was down, use --retry {' --retry '.join(unreached)}")


def _fetch_shard(shard: LinkShard, context: FetchContext) -> TaskResult:
    links = read_links(shard, context.output)
    _crawl_links(links, shard, context)
    warcinfo = {
        "software": f"webtext fetch, version {STAGE.version}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
    }
    if context.config.source == LIVE:
        warcinfo |= {"http-header-user-agent": user_agent(context.config), "robots": "rfc9309"}
    return write_shard_files(links, shard, context, warcinfo)


def _crawl_shard(shard: LinkShard, context: FetchContext) -> TaskResult:
    _crawl_links(read_links(shard, context.output), shard, context)
    return TaskResult()


def _crawl_links(links: Sequence[str], shard: LinkShard, context: FetchContext) -> None:
    """Request the links of a shard that have no outcome yet, into segments.

    Without requests to the web, a link is absent until an archive or a file has its page.
    """
    config, removals, done = context.config, context.removals, context.latest(shard)
    progress.advance(len(done))
    if len(done) == len(links):
        return
    requests: dict[int, str] = {}
    with SegmentWriter(context.segments_folder(shard)) as writer:
        for link, url, failure in classify_links(links, config.max_pages_per_domain):
            if link in done:
                continue
            if removals and removals.find_row({"url": links[link], "id": id_of_url(links[link])}) is not None:
                failure = Failure(REMOVED)
            if failure is None and config.source == LIVE:
                requests[link] = url
            else:
                writer.add(dropped(link, failure or Failure(NOT_IN_SOURCE), source=config.source))
                progress.advance()
        if requests:
            # Sites that could not be reached before say nothing about the local network.
            suspicious = UNREACHED if UNREACHED.isdisjoint(context.retry) else ()
            Crawl(requests, config, writer, suspicious).run()
