"""Downloads the page behind every link as WARC, with an outcome for each link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipelines import progress, storage
from pipelines.engine.config import check_known
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import check_file, has_manifest, read_entry, read_manifest
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.errors import InputError, UsageError, WebtextError
from pipelines.stages.fetch.archives import archives_input, ask_archives
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.crawl import UNREACHED, crawl, user_agent
from pipelines.stages.fetch.known import FetchContext, earlier_warcs, find_known, known_outcomes
from pipelines.stages.fetch.links import LinkShard, open_links, read_links
from pipelines.stages.fetch.outcomes import LIVE, NO_REQUEST, REASONS
from pipelines.stages.fetch.page_sources import open_source, record_absent, take_pages
from pipelines.stages.fetch.report import write_report
from pipelines.stages.fetch.segments import SegmentWriter, open_segments, write_shard_files

ARCHIVES = "archives"
PAGES = "pages"

# Pages change and vanish from the web.
STAGE = Stage("fetch", 1, is_irreplaceable=True, grows=("links", "urls", ARCHIVES, PAGES))


def fetch(
    config: FetchConfig,
    *,
    links: str | Sequence[str],
    output: str,
    options: RunOptions,
    retry: Sequence[str] = (),
) -> Summary:
    """Fetch the page of every link and write it as WARC, with one row per link that holds its outcome.

    `links` is the folder of scrape, or lists of URLs (files, folders or globs). After an interruption, only the links
    without an outcome on disk are requested. If links were added to those of a finished result, only these are, and
    those that it dropped for a reason in `retry`. Archives of the config are asked for links that are gone; with files
    as its source, nothing is requested. Raises InputError if there are no links, WebtextError if no site responds,
    ChangedRunError if links of a finished result are missing. Paper, section 2.1.
    """
    header = user_agent(config)
    if not config.user_agent.strip() or not (header.isascii() and header.isprintable()):
        raise UsageError(f"--user-agent must not be empty, and it and --contact must be printable ASCII: {header!r}")
    stop_file = config.stop_file
    if stop_file and storage.is_local(stop_file) and not storage.is_folder(storage.parent(stop_file)):
        raise UsageError(f"--stop-file {stop_file}: is in no folder that exists, so it could not be made")
    for reason in retry:
        check_known(reason, [name for name in REASONS if name not in NO_REQUEST], "reason", "--retry")
    if retry and not has_manifest(output):
        raise UsageError(f"{output}: --retry needs a finished fetch; run the command without it first")
    source = open_links(links)
    inputs = {source.name: source.fingerprint}
    if page_source := open_source(config):
        inputs[PAGES] = page_source.fingerprint
    if asked := archives_input(config):
        inputs[ARCHIVES] = asked
    elif has_manifest(output) and (asked := (earlier := read_manifest(output).identity.inputs).get(ARCHIVES)):
        # A run that asks no archive keeps what they had; a later one asks for the links that this one adds or retries.
        is_whole = not retry and inputs.items() <= earlier.items()
        inputs[ARCHIVES] = asked if is_whole else "partial"
    with stage_run(STAGE, config, inputs=inputs, output=output, options=options, reopen=bool(retry)) as run:
        if not run.finished:
            if not config.contact and page_source is None:
                run.note("no --contact set: site owners cannot reach you")
            context = FetchContext(config, run.output)
            if run.earlier:
                known = find_known(run, source.shards, config.source, retry, may_lose=options.overwrite)
                warcs = earlier_warcs(run.earlier, len(source.shards))
                context = FetchContext(config, run.output, run.earlier, known, warcs)
            if config.archive or page_source:
                run.map(_crawl_shard, source.shards, context, phase=config.source, work=True, total=source.records)
                if page_source:
                    take_pages(run, source.shards, context, page_source)
                ask_archives(run, source.shards, context)
            entries = run.map(_fetch_shard, source.shards, context, total=source.records)
            outcomes = sum(
                (Counter(entry.dropped) for entry in entries), Counter(ok=sum(entry.records_out for entry in entries))
            )
            if run.earlier:
                outcomes -= known_outcomes(run.output, source.shards, context.known)
            _check_network(run, +outcomes)
            run.once("report", lambda: write_report(run.output, [shard.index for shard in source.shards]))
        return run.finish()


def _check_network(run: StageRun, outcomes: Counter[str]) -> None:
    """Raise WebtextError if all links that needed the network failed as if the local network were down.

    `outcomes` are those of this run. It is discarded then, so that a re-run requests these links again.
    """
    if outcomes.keys() & UNREACHED and outcomes.keys() <= UNREACHED | NO_REQUEST:
        run.discard()
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(outcomes.items()))
        raise WebtextError(
            f"{STAGE.name}: no site could be reached ({reasons}); this machine's network, name server or proxy is the "
            f"likely cause. Check it, then re-run the same command: all {outcomes.total()} links will be retried"
        )


def _fetch_shard(shard: LinkShard, context: FetchContext) -> TaskResult:
    config, output = context.config, context.output
    work = storage.join(output, WORK)
    # The segments are removed as soon as the shard is complete, not at the end of the stage, because together they need
    # as much disk space as the result. The journal entry of the shard is written later, by another process; until then
    # this file replaces it.
    result_path = storage.join(work, f"{shard.name}.json")
    finished = _read_result(result_path, output)
    if finished is not None:
        progress.advance(finished.records_in)
        return finished
    _crawl_shard(shard, context)
    links, folder = read_links(shard), context.segments_folder(shard)
    warcinfo = {
        "software": f"webtext fetch, version {STAGE.version}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
    }
    if config.source == LIVE:
        warcinfo |= {"http-header-user-agent": user_agent(config), "robots": "rfc9309"}
    warcs = context.warcs.get(shard.index, ())
    for file in warcs:
        assert context.earlier is not None
        storage.link(storage.join(context.earlier, file.name), storage.join(output, file.name))
    result = write_shard_files(
        output,
        shard.index,
        segments=open_segments(folder),
        links=links,
        warcinfo=warcinfo,
        known=context.known_rows(shard, links),
        warcs=warcs,
    )
    storage.write_json(result_path, result.entry("shards", shard.name).to_json())
    storage.remove(folder)
    return result


def _crawl_shard(shard: LinkShard, context: FetchContext) -> TaskResult:
    """Request the links of a shard that have no outcome yet, into segments."""
    links = read_links(shard)
    done = bytearray(len(links))
    for link in context.latest(shard, links)["link"].to_pylist():
        done[link] = 1
    progress.advance(sum(done))
    if sum(done) < len(links):
        with SegmentWriter(context.segments_folder(shard)) as writer:
            record = crawl if context.config.source == LIVE else record_absent
            record(links, done, context.config, writer)
    return TaskResult()


def _read_result(path: str, output: str) -> TaskResult | None:
    """Return the result of a complete shard whose journal entry was never written, if its files are intact."""
    try:
        entry = read_entry(path)
    except InputError:
        return None
    if any(check_file(output, file) for file in entry.files):
        return None
    return TaskResult(
        entry.records_in, entry.records_out, dropped=entry.dropped, counts=entry.counts, files=entry.files
    )
