"""The responses of Reddit's and of Arctic Shift's API, stored as files in the format of the dumps.

APIs change their answers over time. Each listing (of one subreddit or domain) is therefore requested once and stored
with the links as `listing-N.ndjson.zst`, which every rerun reads. Arctic Shift's listings have many pages: each is
stored as it arrives, and a killed run resumes after the last one.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import zstandard

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.records import shards
from pipelines.stages.scrape.api_client import ApiClient
from pipelines.stages.scrape.arctic_shift import (
    Record,
    Search,
    SearchPage,
    Window,
    domain_queries,
    subreddit_queries,
)
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.reddit_api import TIMED_LISTINGS, connect, listing_lines
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission_filter import SubmissionFilter, subreddit_names

# Arctic Shift archives a submission when it is posted, and updates its score after about this time.
SCORES_SETTLE_S = 36 * 3600
_FIRST_SUBMISSION_UTC = 1117584000  # 2005-06-01
# Reddit ends a listing somewhat before 1,000 if submissions were deleted.
_NEARLY_ALL = 900
_SUBREDDIT = re.compile(r"[A-Za-z0-9_]+(?:[+-][A-Za-z0-9_]+)*")  # all-news and a+b are listings of several
_HOST = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z0-9-]+")


def check_listing_options(config: ScrapeConfig, dumps: Sequence[str]) -> None:
    """Raise UsageError for files although the source is an API, and for options that exclude each other."""
    source = config.source
    if dumps:
        raise UsageError(f"--source {source} reads an API and takes no files; omit them")
    for name in subreddit_names(config):
        if not _SUBREDDIT.fullmatch(name):
            raise UsageError(f"--subreddit {name}: is not the name of a subreddit, such as python")
    if source == "arctic-shift":
        if bool(config.subreddit) == bool(config.domain):
            raise UsageError("--source arctic-shift needs either --subreddit or --domain")
        _hosts(config)
        return
    if not config.subreddit:
        raise UsageError("--source praw needs at least one --subreddit")
    if (config.listing == "search") != bool(config.query):
        raise UsageError("--listing search needs --query, which no other listing takes")
    if config.time_filter != "all" and config.listing not in TIMED_LISTINGS:
        raise UsageError(f"--time-filter has no effect with --listing {config.listing}; omit it")


def fetch_listings(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter) -> list[SourceFile]:
    """Request the listings that are not stored yet; return those that contain submissions.

    Raises InputError if none does, if the API refuses, or does not respond after several attempts.
    """
    if config.source == "praw":
        entries = _fetch_reddit(run, config)
    else:
        entries = _fetch_arctic_shift(run, config, _fixed_window(run, config, filter))
    files = [entry.files[0] for entry in entries if entry.counts["listed_submissions"]]
    if not files:
        raise InputError(
            f"--source {config.source}: no submissions of {', '.join(config.subreddit or config.domain)}; "
            "check the name and the dates, then re-run with --overwrite, which requests the listings again"
        )
    return [SourceFile(file.name, storage.join(run.output, file.name), file.sha256) for file in files]


def _fetch_reddit(run: StageRun, config: ScrapeConfig) -> Iterator[ShardEntry]:
    reddit = functools.cache(connect)
    options: dict[str, Any] = {"time_filter": config.time_filter, "query": config.query or "", "limit": config.limit}
    for index, subreddit in enumerate(_distinct(subreddit_names(config))):

        def store(index: int = index, subreddit: str = subreddit) -> TaskResult:
            lines = listing_lines(reddit(), subreddit, config.listing, **options)
            return _write_listing(run.output, index, _with_progress(lines))

        entry = run.once(f"listing-{subreddit.lower()}", store, unit="submissions")
        count = int(entry.counts["listed_submissions"])
        if count >= min(config.limit, _NEARLY_ALL):
            run.note(
                f"r/{subreddit}/{config.listing}: truncated at {count} submissions, by --limit {config.limit} or by "
                "Reddit, which ends every listing at about 1,000. No listing covers the whole history; for that, use "
                "dumps or --source arctic-shift"
            )
        yield entry


def _fetch_arctic_shift(run: StageRun, config: ScrapeConfig, window: Window) -> Iterator[ShardEntry]:
    client = ApiClient(config.api_url)
    targets = [(name, subreddit_queries(name)) for name in _distinct(subreddit_names(config))]
    targets += [(host, domain_queries(host)) for host in _hosts(config)]
    for index, (target, queries) in enumerate(targets):
        stored = [_StoredPages(run.work, f"page-{index:05d}-{number}-") for number in range(len(queries))]

        def store(
            index: int = index, queries: list[dict[str, str]] = queries, stored: list[_StoredPages] = stored
        ) -> TaskResult:
            for query, pages in zip(queries, stored, strict=True):
                pages.fetch_missing(Search(client, query, window))
            return _write_listing(run.output, index, (line for pages in stored for line in pages.lines()))

        entry = run.once(f"listing-{target.lower()}", store, unit="submissions")
        for pages in stored:
            pages.remove()
        if not entry.counts["listed_submissions"]:
            run.note(f"{target}: Arctic Shift has no submissions of it in this time window; is the name right?")
        yield entry


class _StoredPages:
    """The pages of one search in the work folder, numbered from 0."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix

    def fetch_missing(self, search: Search) -> None:
        """Request and store the pages after the last stored one."""
        names = self._names()
        if names:
            search.resume_after(self._newest_records(names))
        last = bool(names) and self._read(names[-1]).last
        number = len(names)
        while not last:
            page = search.next_page()
            data = json.dumps({"last": page.last, "submissions": page.records}).encode()
            storage.write_bytes(storage.join(self._folder, f"{self._prefix}{number:07d}.json"), data)
            progress.advance(len(page.records))
            last, number = page.last, number + 1

    def lines(self) -> Iterator[bytes]:
        """Yield all submissions as lines of NDJSON sorted by time and id, whatever the order of the responses."""
        records = (record for name in self._names() for record in self._read(name).records)
        for _, same_second in itertools.groupby(records, key=lambda record: record["created_utc"]):
            for record in sorted(same_second, key=lambda record: record["id"]):
                yield json.dumps(record, ensure_ascii=True, sort_keys=True).encode() + b"\n"

    def remove(self) -> None:
        """Remove the files."""
        for name in self._names():
            storage.remove(storage.join(self._folder, name))

    def _newest_records(self, names: list[str]) -> list[Record]:
        """Return the records of the last pages, back to before the last two seconds."""
        newest: list[Record] = []
        for name in reversed(names):
            newest = self._read(name).records + newest
            if newest and newest[0]["created_utc"] < newest[-1]["created_utc"] - 1:
                break
        return newest

    def _names(self) -> list[str]:
        return [name for name in storage.list_folder(self._folder) if name.startswith(self._prefix)]

    def _read(self, name: str) -> SearchPage:
        value = storage.read_json(storage.join(self._folder, name))
        return SearchPage(value["submissions"], value["last"])


def _fixed_window(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter) -> Window:
    """Return the time window to request; its end is fixed when a run starts and stored with it."""
    start = _FIRST_SUBMISSION_UTC if filter.after is None else filter.after

    def fix_end() -> TaskResult:
        newest = int(time.time()) - (0 if config.accept_fresh_scores else SCORES_SETTLE_S)
        end = newest if filter.before is None else min(newest, filter.before)
        if end <= start:
            raise UsageError(
                f"--after {config.after}: everything since then is younger than 36 hours and has no final scores yet; "
                "choose an earlier day, or add --accept-fresh-scores"
            )
        return TaskResult(counts={"asked_until_utc": end})

    end = int(run.once("window", fix_end).counts["asked_until_utc"])
    if filter.before is None or end < filter.before:
        date = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        why = "" if config.accept_fresh_scores else "; the scores of the last 36 hours are not final yet"
        run.note(f"requesting submissions from Arctic Shift up to {date} UTC{why}")
    return Window(start, end)


def _write_listing(folder: str, index: int, lines: Iterable[bytes]) -> TaskResult:
    name = shards.shard_name("listing", index, "ndjson.zst")
    count = 0
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    with storage.atomic_write(storage.join(folder, name)) as stream:
        for line in lines:
            stream.write(compressor.compress(line))
            count += 1
        stream.write(compressor.flush())
    entry = FileEntry(name, stream.size_bytes, stream.checksum)
    return TaskResult(counts={"listed_submissions": count}, files=(entry,))


def _with_progress(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield line
        progress.advance()


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names without those that differ only in case from an earlier one."""
    distinct: dict[str, str] = {}
    for name in names:
        distinct.setdefault(name.lower(), name)
    return list(distinct.values())


def _hosts(config: ScrapeConfig) -> list[str]:
    hosts = [domain.lower().rstrip(".") for domain in config.domain]
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(f"--domain {host}: is not a host such as example.com (no scheme, no path)")
    return _distinct(hosts)
