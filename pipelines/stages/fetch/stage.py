"""Downloads the page behind every link as WARC, with an outcome for each link."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipelines.core import progress, storage
from pipelines.core.errors import InputError, UsageError, WebtextError
from pipelines.core.manifest import ShardEntry, check_file
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.crawl import UNREACHED, crawl, user_agent
from pipelines.stages.fetch.links import LinkShard, open_links, read_links
from pipelines.stages.fetch.merge import Target, merge
from pipelines.stages.fetch.segments import Segment, SegmentWriter, open_segments, read_outcomes

STAGE = Stage("fetch", 1)

# What links are dropped for without a request.
_NO_REQUEST = frozenset({"bad_url", "duplicate_url"})


@dataclasses.dataclass(frozen=True)
class _Task:
    shard: LinkShard
    config: FetchConfig
    output: str
    work: str

    @property
    def name(self) -> str:
        return self.shard.name


def fetch(config: FetchConfig, *, links: str | Sequence[str], output: str, options: RunOptions) -> Summary:
    """Fetch the page of every link and write it as WARC, with one row a link that says what became of it.

    A rerun after a kill asks only for the links whose outcome is not yet on disk. Raises InputError where there are no
    links, WebtextError where no site answers. Paper, section 2.1.
    """
    _check_user_agent(config)
    source = open_links(links)
    with stage_run(STAGE, config, {source.name: source.fingerprint}, output, options) as run:
        if not run.finished:
            if not config.contact:
                run.note("no --contact is given, so site owners cannot tell you that you trouble them")
            tasks = [_Task(shard, config, output, run.work) for shard in source.shards]
            entries = run.map(_fetch_shard, tasks, total=source.records)
            if _nothing_reached(entries):
                return _finish_unreached(run, entries)
        return run.finish()


def _nothing_reached(entries: Sequence[ShardEntry]) -> bool:
    """Tell whether every link that needed the network failed as links do when our own network is down."""
    reasons = {reason for entry in entries for reason in entry.dropped}
    kept = sum(entry.records_out for entry in entries)
    return not kept and bool(reasons & UNREACHED) and reasons <= UNREACHED | _NO_REQUEST


def _finish_unreached(run: StageRun, entries: Sequence[ShardEntry]) -> Summary:
    """Raise, with the likely cause, what `finish` raises where all records were dropped."""
    try:
        return run.finish()
    except WebtextError as error:
        drops = Counter[str]()
        for entry in entries:
            drops.update(entry.dropped)
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(drops.items()))
        raise WebtextError(
            f"{STAGE.name}: no site could be reached ({reasons}), so this machine's network, name server or proxy "
            f"is the likely cause; check it, then run again: all {drops.total()} links are tried anew"
        ) from error


def _check_user_agent(config: FetchConfig) -> None:
    header = user_agent(config)
    if not config.user_agent.strip() or not (header.isascii() and header.isprintable()):
        raise UsageError(f"--user-agent and --contact must be printable ASCII, and the first not empty: {header!r}")


def _fetch_shard(task: _Task) -> TaskResult:
    finished = _result_on_disk(task)
    if finished is not None:
        progress.advance(finished.records_in)
        return finished
    links = read_links(task.shard)
    folder = storage.join(task.work, task.name)
    segments = open_segments(folder)
    done = _done(segments, len(links))
    progress.advance(sum(done))
    with SegmentWriter(folder, segments[-1].number + 1 if segments else 0) as writer:
        crawl(links, done, task.config, writer)
    result = merge(open_segments(folder), links, _target(task))
    _keep_result(task, result)
    storage.remove(folder)
    return result


def _done(segments: Sequence[Segment], count: int) -> bytearray:
    """Return a mark for each link that has an outcome."""
    done = bytearray(count)
    for segment in segments:
        for link in read_outcomes(segment, ["link"])["link"].to_pylist():
            done[link] = 1
    return done


def _target(task: _Task) -> Target:
    warcinfo = {
        "software": f"webtext fetch, version {STAGE.version}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        "http-header-user-agent": user_agent(task.config),
        "robots": "rfc9309",
    }
    return Target(task.output, task.shard.index, warcinfo)


# The segments go as soon as a shard is merged, not only at the end of the stage: together they take as much disk as the
# result. But the shard's entry in the journal is written by another process, later. This file fills the gap.
def _result_path(task: _Task) -> str:
    return storage.join(task.work, f"{task.name}.json")


def _keep_result(task: _Task, result: TaskResult) -> None:
    fields: dict[str, Any] = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    storage.write_json(_result_path(task), ShardEntry("shards", task.name, **fields).to_json())


def _result_on_disk(task: _Task) -> TaskResult | None:
    """Return the result of a merge whose entry was never written, if its files are intact."""
    if not storage.exists(_result_path(task)):
        return None
    try:
        entry = ShardEntry.from_json(storage.read_json(_result_path(task)))
    except InputError:
        return None
    if any(check_file(task.output, file) for file in entry.files):
        return None
    return TaskResult(entry.records_in, entry.records_out, entry.dropped, entry.counts, entry.files)
