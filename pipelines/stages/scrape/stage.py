"""Turns Reddit's submissions into links: one row a canonical URL, with all that was said of it."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.core import shards, storage
from pipelines.core.errors import UsageError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.merge import MergeTask, merge_bucket
from pipelines.stages.scrape.partition import PartitionTask, partition_file
from pipelines.stages.scrape.reading import REJECT_SCHEMA
from pipelines.stages.scrape.reddit_api import listing_lines
from pipelines.stages.scrape.selection import Selection, make_selection, subreddit_names
from pipelines.stages.scrape.sources import SourceFile, find_files, with_standard_input

STAGE = Stage("scrape", 1)

_LISTING_FILE = "listing-00000.ndjson"
_REJECTS_FILE = "rejects-00000.parquet"


def scrape(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the links of dumps, of lists of URLs or of a listing of Reddit's API as `links-N.parquet`.

    `dumps` are files, folders or globs, `-` for standard input; none for `--source praw`. Records in are submissions
    (lines), records out are links; `rejects-00000.parquet` lists the lines that hold no submission. Raises InputError,
    naming the file, for one that is damaged or holds no submissions. Paper, section 2.1.
    """
    selection = make_selection(config)
    if config.source == "praw":
        return _scrape_listing(config, selection, dumps, output, options)
    if not dumps:
        raise UsageError(
            "no dumps were named; give files, folders or globs as arguments, or list them in webtext.toml: "
            '[scrape] dumps = ["dumps/RS_2017-11.zst"]'
        )
    with with_standard_input(dumps, output) as paths:
        files = find_files(paths, config.source)
        fingerprints = {file.label: file.fingerprint for file in files} | _profile_input(selection)
        with stage_run(STAGE, config, fingerprints, output, options) as run:
            if not run.finished:
                _make_links(run, config, selection, files)
            return run.finish()


def _scrape_listing(
    config: ScrapeConfig, selection: Selection, dumps: Sequence[str], output: str, options: RunOptions
) -> Summary:
    """Fetch a listing into a file of its own, which stays, since Reddit never answers the same twice; then go on."""
    if dumps:
        raise UsageError("--source praw reads Reddit's API and takes no files; leave them out")
    names = subreddit_names(config)
    if not names:
        raise UsageError("--source praw needs at least one --subreddit")

    def fetch() -> TaskResult:
        with storage.atomic_write(storage.join(output, _LISTING_FILE)) as stream:
            for line in listing_lines(names, config.listing, config.limit):
                stream.write(line)
        return TaskResult(files=(FileEntry(_LISTING_FILE, stream.size_bytes, stream.sha256),))

    with stage_run(STAGE, config, _profile_input(selection), output, options) as run:
        if not run.finished:
            entry = run.once("listing", fetch).files[0]
            file = SourceFile(entry.name, storage.join(output, entry.name), entry.sha256)
            _make_links(run, config, selection, [file])
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
    after_merge = config.min_score if selection.needs_score and config.karma != "max" else None
    work_files = tuple(task.submissions_name for task in sources)
    buckets = [
        MergeTask(bucket, work_files, config.karma, after_merge, run.output, work) for bucket in range(config.shards)
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
