"""Turns Reddit's submissions into links: one row a canonical URL, with all that was said of it."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.core import shards, storage
from pipelines.core.errors import UsageError
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.listings import check_listing_options, fetch_listings
from pipelines.stages.scrape.merge import MergeTask, merge_bucket
from pipelines.stages.scrape.partition import PartitionTask, partition_file
from pipelines.stages.scrape.reading import REJECT_SCHEMA
from pipelines.stages.scrape.selection import Selection, make_selection, resolved
from pipelines.stages.scrape.sources import SourceFile, find_files, with_standard_input
from pipelines.stages.scrape.url_lists import check_url_column

STAGE = Stage("scrape", 1)

_REJECTS_FILE = "rejects-00000.parquet"


def scrape(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the links of dumps, of lists of URLs or of a listing of Reddit's API as `links-N.parquet`.

    `dumps` are files, folders or globs, `-` for standard input; none for the APIs. Records in are submissions
    (lines), records out are links; `rejects-00000.parquet` lists the lines that hold no submission. Raises InputError,
    naming the file, for one that is damaged or holds no submissions. Paper, section 2.1.
    """
    config = resolved(config)
    selection = make_selection(config)
    if not config.needs_files:
        return _scrape_listing(config, selection, dumps, output, options)
    if not dumps:
        raise UsageError(
            "no dumps were named; give files, folders or globs as arguments, or list them in webtext.toml: "
            '[scrape] dumps = ["dumps/RS_2017-11.zst"]'
        )
    with with_standard_input(dumps, output) as paths:
        files = find_files(paths, config.source)
        check_url_column(config.url_column, files)
        fingerprints = {file.label: file.fingerprint for file in files} | _profile_input(selection)
        with stage_run(STAGE, config, fingerprints, output, options) as run:
            if not run.finished:
                _make_links(run, config, selection, files)
            return run.finish()


def _scrape_listing(
    config: ScrapeConfig, selection: Selection, dumps: Sequence[str], output: str, options: RunOptions
) -> Summary:
    """Fetch listings into files of their own, which stay, since an API never answers the same twice; then go on."""
    check_listing_options(config, dumps)
    with stage_run(STAGE, config, _profile_input(selection), output, options) as run:
        if not run.finished:
            _make_links(run, config, selection, fetch_listings(run, config, selection))
        return run.finish()


def _profile_input(selection: Selection) -> dict[str, str]:
    # The rules are data, not an option, but they decide the result all the same.
    return {f"profile {selection.profile.name}": selection.profile.fingerprint}


def _make_links(run: StageRun, config: ScrapeConfig, selection: Selection, files: list[SourceFile]) -> None:
    work = storage.basename(run.work)
    sources = [
        PartitionTask(index, file, selection, config.source, config.shards, run.output, work)
        for index, file in enumerate(files)
    ]
    read = run.map(partition_file, sources, phase="read", work=True, unit="bytes", cost=_file_bytes)
    kept = sum(int(entry.counts["kept_submissions"]) for entry in read)
    work_files = tuple(task.submissions_name for task in sources)
    buckets = [
        MergeTask(bucket, work_files, selection.karma, selection.least_link_score, run.output, work)
        for bucket in range(config.shards)
    ]
    run.map(merge_bucket, buckets, phase="merge", total=kept, unit="submissions")
    run.once("rejects", lambda: _collect_rejects(run, sources))


def _file_bytes(task: PartitionTask) -> int:
    return storage.size_bytes(task.file.path)


def _collect_rejects(run: StageRun, sources: list[PartitionTask]) -> TaskResult:
    """Put the rejected lines of all files into one list, by file and line."""
    with shards.write_shard(run.output, _REJECTS_FILE, REJECT_SCHEMA) as rejects:
        for task in sources:
            for batch in shards.read_batches(storage.join(run.output, task.rejects_name)):
                rejects.writer.write_batch(batch)
    return TaskResult(files=(rejects.entry,))
