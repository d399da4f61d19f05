"""The answers of Reddit's and of Arctic Shift's API, kept as files in the form of the dumps.

What an API answers is another thing tomorrow. So each listing (of one subreddit or domain) is asked for once and stays
beside the links as `listing-N.ndjson.zst`; every rerun reads that file. Arctic Shift's come in many pages: each is
written as it comes, and a run that was killed goes on after the last one.
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

from pipelines.core import progress, shards, storage
from pipelines.core.errors import InputError, UsageError
from pipelines.core.manifest import FileEntry, ShardEntry
from pipelines.core.run import StageRun, TaskResult
from pipelines.stages.scrape.api_client import ApiClient
from pipelines.stages.scrape.arctic_shift import Page, Record, Search, Window, domain_queries, subreddit_queries
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.reddit_api import TIMED_LISTINGS, connect, listing_lines
from pipelines.stages.scrape.selection import Selection, subreddit_names
from pipelines.stages.scrape.sources import SourceFile

# Arctic Shift archives a submission as it is posted, and asks Reddit for its score after about this time.
SCORES_SETTLE_S = 36 * 3600
_REDDIT_BEGAN = 1117584000  # 2005-06-01
# Reddit ends a listing somewhat before 1,000 where submissions were deleted.
_NEARLY_ALL = 900
_SUBREDDIT = re.compile(r"[A-Za-z0-9_]+(?:[+-][A-Za-z0-9_]+)*")  # all-news and a+b are listings of several
_HOST = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z0-9-]+")


def check_listing_options(config: ScrapeConfig, dumps: Sequence[str]) -> None:
    """Raise UsageError for files where an API is the source, and for options that do not go together."""
    source = config.source
    if dumps:
        raise UsageError(f"--source {source} reads an API and takes no files; leave them out")
    for name in subreddit_names(config):
        if not _SUBREDDIT.fullmatch(name):
            raise UsageError(f"--subreddit {name}: is not the name of a subreddit, such as python")
    if source == "arctic-shift":
        if bool(config.subreddits) == bool(config.domains):
            raise UsageError("--source arctic-shift needs --subreddit or --domain, and not both")
        _hosts(config)
        return
    if not config.subreddits:
        raise UsageError("--source praw needs at least one --subreddit")
    if (config.listing == "search") != bool(config.query):
        raise UsageError("--listing search needs --query, and no other listing takes it")
    if config.time_filter != "all" and config.listing not in TIMED_LISTINGS:
        raise UsageError(f"--time-filter has no meaning with --listing {config.listing}; leave it out")


def fetch_listings(run: StageRun, config: ScrapeConfig, selection: Selection) -> list[SourceFile]:
    """Ask the API for what was not asked for before; return the listings that hold submissions.

    Raises InputError where none does, where the API refuses, or gives no answer after several tries.
    """
    if config.source == "praw":
        entries = _reddit_listings(run, config)
    else:
        entries = _arctic_shift_listings(run, config, _fixed_window(run, config, selection))
    found = [entry.files[0] for entry in entries if entry.counts["listed_submissions"]]
    if not found:
        raise InputError(
            f"--source {config.source}: found no submission of {', '.join(config.subreddits or config.domains)}; "
            "check the name and the dates, then run again with --overwrite"
        )
    return [SourceFile(file.name, storage.join(run.output, file.name), file.sha256) for file in found]


def _reddit_listings(run: StageRun, config: ScrapeConfig) -> Iterator[ShardEntry]:
    reddit = functools.cache(connect)
    timed: dict[str, Any] = {"time_filter": config.time_filter, "query": config.query or "", "limit": config.limit}
    for index, subreddit in enumerate(_distinct(subreddit_names(config))):

        def save(name: str = _listing_name(index), subreddit: str = subreddit) -> TaskResult:
            lines = listing_lines(reddit(), subreddit, config.listing, **timed)
            return _write_listing(run.output, name, _with_progress(lines))

        entry = run.once(f"listing-{subreddit.lower()}", save, unit="submissions")
        _note_ceiling(run, f"r/{subreddit}/{config.listing}", int(entry.counts["listed_submissions"]), config.limit)
        yield entry


def _note_ceiling(run: StageRun, place: str, count: int, limit: int) -> None:
    if count >= min(limit, _NEARLY_ALL):
        run.note(
            f"{place}: has {count} submissions, where it was cut: at --limit {limit}, or by Reddit, which ends every "
            "listing at about 1,000. What lies beyond is missing, and no listing enumerates the history: for that "
            "take dumps or --source arctic-shift"
        )


def _arctic_shift_listings(run: StageRun, config: ScrapeConfig, window: Window) -> Iterator[ShardEntry]:
    client = ApiClient(config.api_url)
    targets = [(name, subreddit_queries(name)) for name in _distinct(subreddit_names(config))]
    targets += [(host, domain_queries(host)) for host in _hosts(config)]
    for index, (place, queries) in enumerate(targets):
        pages = [_Pages(run.work, f"page-{index:05d}-{number}-") for number in range(len(queries))]
        searches = [Search(client, query, window) for query in queries]

        def save(
            name: str = _listing_name(index), searches: list[Search] = searches, pages: list[_Pages] = pages
        ) -> TaskResult:
            for search, its_pages in zip(searches, pages, strict=True):
                its_pages.fetch_missing(search)
            return _write_listing(run.output, name, (line for each in pages for line in each.lines()))

        entry = run.once(f"listing-{place.lower()}", save, unit="submissions")
        for each in pages:
            each.remove()
        if not entry.counts["listed_submissions"]:
            run.note(f"{place}: Arctic Shift has no submission of it in this window; is the name right?")
        yield entry


class _Pages:
    """The pages of one search in the work folder, numbered from 0."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix

    def fetch_missing(self, search: Search) -> None:
        """Ask for the pages that are not there, up to the last one."""
        names = self._names()
        if names:
            search.go_on_after(self._newest(names))
        last = bool(names) and self._read(names[-1]).last
        number = len(names)
        while not last:
            page = search.next_page()
            value = {"last": page.last, "submissions": page.records}
            storage.write_bytes(
                storage.join(self._folder, f"{self._prefix}{number:07d}.json"), json.dumps(value).encode()
            )
            progress.advance(len(page.records))
            last, number = page.last, number + 1

    def lines(self) -> Iterator[bytes]:
        """Yield all submissions as lines of NDJSON in order of time, then id, whatever the order of the answers."""
        records = (record for name in self._names() for record in self._read(name).records)
        for _, of_one_second in itertools.groupby(records, key=lambda record: record["created_utc"]):
            for record in sorted(of_one_second, key=lambda record: record["id"]):
                yield json.dumps(record, ensure_ascii=True, sort_keys=True).encode() + b"\n"

    def remove(self) -> None:
        """Remove the files."""
        for name in self._names():
            storage.remove(storage.join(self._folder, name))

    def _newest(self, names: list[str]) -> list[Record]:
        """Return the records of the last pages, back to before the last two seconds."""
        newest: list[Record] = []
        for name in reversed(names):
            newest = self._read(name).records + newest
            if newest and newest[0]["created_utc"] < newest[-1]["created_utc"] - 1:
                break
        return newest

    def _names(self) -> list[str]:
        return [name for name in storage.list_folder(self._folder) if name.startswith(self._prefix)]

    def _read(self, name: str) -> Page:
        value = storage.read_json(storage.join(self._folder, name))
        return Page(value["submissions"], value["last"])


def _fixed_window(run: StageRun, config: ScrapeConfig, selection: Selection) -> Window:
    """Return the window to ask for; its end is fixed when a run begins and kept with it."""
    start = _REDDIT_BEGAN if selection.after is None else selection.after

    def fix() -> TaskResult:
        newest = int(time.time()) - (0 if config.accept_fresh_scores else SCORES_SETTLE_S)
        end = newest if selection.before is None else min(newest, selection.before)
        if end <= start:
            raise UsageError(
                f"--after {config.after}: all since then is younger than 36 hours, and its scores are not known yet; "
                "take an earlier day, or give --accept-fresh-scores"
            )
        return TaskResult(counts={"asked_until_utc": end})

    end = int(run.once("window", fix).counts["asked_until_utc"])
    if selection.before is None or end < selection.before:
        moment = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        run.note(
            f"Arctic Shift is asked for submissions up to {moment} UTC"
            + ("" if config.accept_fresh_scores else ": the scores of the last 36 hours are not known yet")
        )
    return Window(start, end)


def _write_listing(folder: str, name: str, lines: Iterable[bytes]) -> TaskResult:
    count = 0
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    with storage.atomic_write(storage.join(folder, name)) as stream:
        for line in lines:
            stream.write(compressor.compress(line))
            count += 1
        stream.write(compressor.flush())
    entry = FileEntry(name, stream.size_bytes, stream.sha256)
    return TaskResult(counts={"listed_submissions": count}, files=(entry,))


def _with_progress(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield line
        progress.advance()


def _listing_name(index: int) -> str:
    return shards.shard_name("listing", index, "ndjson.zst")


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names without those that differ only in case from an earlier one."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return list(found.values())


def _hosts(config: ScrapeConfig) -> list[str]:
    hosts = [domain.lower().rstrip(".") for domain in config.domains]
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(f"--domain {host}: is not a host such as example.com (no scheme, no path)")
    return _distinct(hosts)
