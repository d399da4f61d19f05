"""Pages of links in web archives, and in WARC and ARC files on disk, by an index.

An index is Parquet files as Common Crawl publishes them, sorted by key (SURT: `com,example)/x`), as are the links: one
pass over the row groups between whose keys links lie serves any number of links. Then every page is one read. Redirects
are looked up again, so that they are followed within the archive. Files on disk are indexed first, in one pass.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import surt

from pipelines import progress, storage
from pipelines.algorithms.web.charset import TEXT_TYPES
from pipelines.algorithms.web.urls import canonical_url
from pipelines.engine.journal import WORK
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.format import mask_credentials
from pipelines.records import input_paths, shards
from pipelines.records.archives import has_members, read_archive
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.schemas import make_schema
from pipelines.stages.fetch.captures import Capture, capture_of, find_page, read_record, record_answer, wanted_links
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.outcomes import REDIRECTS
from pipelines.stages.fetch.segments import FetchContext, SegmentWriter
from pipelines.stages.fetch.visit import page_failure
from pipelines.stages.fetch.wayback import query_wayback
from pipelines.storage.compression import open_decompressed, strip_compression

# How often a page is looked up in Common Crawl: once, and after each redirect.
_LOOKUPS = 4
_THREADS = 16
_CHECKED_CAPTURES, _CHECKED_FILES = 1_000, 10
# The links whose captures are dictionaries at a time: 750 bytes per capture.
_LINKS = 20_000
# The links that a join has in memory, about 200 bytes each, apart from those of one shard.
_MAX_WANTED = 2_000_000
# This many pages are read ahead of what is stored.
_READ_AHEAD = 64
# Of a file on disk.
_INDEX = WORK + "/source-{:05d}.parquet"

# The column of keys, and the columns that are read.
KEY = "url_surtkey"
INDEX_SCHEMA = make_schema(
    url_surtkey="string?", url="string?", fetch_time="instant?", fetch_status="int32?", warc_filename="string?",
    warc_record_offset="int64?", warc_record_length="int64?", content_mime_detected="string?",
)  # fmt: skip
# A link to look up, sorted by key; `at` is when it was posted (seconds since 1970), `url` is its URL, or that to which
# an archived page redirected.
WANTED_SCHEMA = make_schema(url_surtkey="string", shard="int32", link="int32", at="int64?", url="string")
_JOINED = [KEY, "shard", "link", "at"]
# The captures of a link: pages before redirects, by the seconds between them and the link, which are their `rank`.
CAPTURE_SCHEMA = pa.schema([("link", pa.int32()), *list(INDEX_SCHEMA)[1:-1], ("rank", pa.int64())])
_PLACE = operator.itemgetter("warc_filename", "warc_record_offset")
_REDIRECT_RANK = 1 << 40
# Of a page that was captured thousands of times, the nearest captures are enough; pages of several URLs have one key.
_CAPTURES_PER_URL = 8


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A lookup of all links in the index of an archive, or of the redirects of the one before; its tasks share it.

    `index` are the paths of its files, each of which one task joins with the links. `path_of` returns the path of a
    WARC file that the index names. A page is looked up at most `limit` times: once, and after each redirect.
    """

    fetch: FetchContext
    token: str
    index: Sequence[str]
    path_of: Callable[[str], str]
    limit: int
    number: int = 0

    @property
    def phase(self) -> str:
        """The beginning of the names of its phases and work files."""
        return f"{self.token.replace(':', '-')}-{self.number}"

    @property
    def wanted(self) -> list[str]:
        """The names of the files with the links to look up, one per shard."""
        return [f"{WORK}/{self.phase}-wanted-{index:05d}.parquet" for index in range(self.fetch.shard_count)]

    def captures(self, number: int) -> str:
        """Return the name of the file with the captures that one of the files of the index has of them."""
        return f"{WORK}/{self.phase}-index-{number:05d}"


def archives_input(config: FetchConfig) -> str | None:
    """Return what stands for the archives in the manifest: other archives, or more requests, are an addition.

    None without archives. Raises UsageError for an archive without its index, InputError if that cannot be read.
    """
    if "commoncrawl" in config.archive and not config.cc_index:
        raise UsageError("--archive commoncrawl: needs --cc-index, the index of a crawl (see docs/fetch.md)")
    if not re.match("https?://[^/]", config.wayback_url):
        raise UsageError(f"--wayback-url {config.wayback_url}: is not an http or https URL")
    if not config.archive:
        if config.source == "archives":
            raise UsageError("--source archives: needs --archive, the archives to look up pages in")
        return None
    if config.cc_index:
        if storage.is_local(config.cc_records) and not storage.is_folder(config.cc_records):
            raise InputError(f"{config.cc_records}: --cc-records: no such folder")
        storage.file_system(config.cc_records)  # raises for an unknown scheme
        open_index(config.cc_index, config.cc_records)
    options = [config.archive, config.archive_for, config.archive_window, config.cc_index, config.wayback_requests]
    return hashlib.sha256(mask_credentials(json.dumps(options)).encode()).hexdigest()


def query_archives(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext) -> None:
    """Look up the pages that are still missing in each archive."""
    config = context.config
    if config.archive_window is not None and link_shards[0].is_list:
        run.note("--archive-window has no effect: links from lists have no dates")
    for name in config.archive:
        if name == "commoncrawl":
            # A page that one index lacks, another may have.
            names = hashlib.sha256(mask_credentials("\n".join(config.cc_index)).encode()).hexdigest()[:8]
            index = open_index(config.cc_index, config.cc_records)
            _check_records(index[0], config.cc_records)
            path_of = functools.partial(storage.join, config.cc_records)
            look_up(run, link_shards, Lookup(context, f"{name}:{names}", index, path_of, _LOOKUPS))
        else:
            query_wayback(run, link_shards, context, name)


def open_pages(config: FetchConfig) -> list[str]:
    """Return the files on disk to take pages from, none for the web and archives.

    Raises UsageError for missing options, InputError for a file whose records cannot be read one by one.
    """
    if config.source != "warc":
        return []
    if not config.pages:
        raise UsageError("--source warc: needs --pages, WARC or ARC files")
    files = input_paths.expand_paths(config.pages, (".warc", ".arc"))
    if packed := next(itertools.filterfalse(has_members, files), None):
        raise InputError(f"{packed}: no single page can be read from this compression; decompress the file first")
    return files


def take_pages(
    run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, files: Sequence[str], fingerprint: str
) -> None:
    """Store the page of each link that files on disk with a fingerprint have."""
    token = f"warc:{fingerprint[:8]}"
    phase, numbers, task = f"{token.replace(':', '-')}-source", range(len(files)), (context, files)
    run.map(_index_archive, numbers, task, name=str, phase=phase, work=True, total=len(files), unit="files")
    index = [storage.join(run.output, _INDEX.format(number)) for number in numbers]
    # By number: a re-run may be in another folder, or name the files in another way.
    path_of = {str(number): path for number, path in enumerate(files)}.__getitem__
    look_up(run, link_shards, Lookup(context, token, index, path_of, 1 + context.config.max_redirects))


def _index_archive(number: int, context: tuple[FetchContext, Sequence[str]]) -> TaskResult:
    """Write the position of each page and redirect in a WARC or ARC file."""
    fetch, files = context
    counts = Counter[str]()
    with shards.write_shard(fetch.output, _INDEX.format(number), INDEX_SCHEMA) as index:
        for record in read_archive(files[number], capture_of):
            if (capture := record.content) is None:
                continue
            response = dataclasses.replace(capture.response, body=b"")
            counts["responses_in_source"] += 1
            if not record.is_intact:
                counts["damaged_records_in_source"] += 1
            elif (is_redirect := response.status in REDIRECTS) or page_failure(response) is None:
                counts["pages_in_source"] += not is_redirect
                status = response.status if is_redirect else 200
                place = str(number), record.offset, record.length
                row = surt_key(capture.url), capture.url, capture.captured_at, status, *place, "text/html"
                index.write(dict(zip(INDEX_SCHEMA.names, row, strict=True)))
    progress.advance(1)
    return TaskResult(counts=counts, files=(index.entry,))


def surt_key(url: str) -> str | None:
    """Return the key of a URL in the indexes of web archives; None if it has none."""
    try:
        return str(surt.surt(url))
    except (ValueError, UnicodeError, AttributeError, TypeError):  # what the package raises for malformed URLs
        return None


def open_index(paths: Sequence[str], records: str) -> list[str]:
    """Return the files of a columnar index: Parquet (also by folder or glob), or lists of them (`*.paths`).

    A list, also compressed, names files relative to `records`, one per line, as Common Crawl publishes them. Raises
    InputError for other files.
    """
    files: list[str] = []
    for path in paths:
        if strip_compression(path).endswith(".paths"):
            with open_decompressed(path) as stream:
                names = [line.decode().strip() for line in stream]
            files += [storage.join(records, name) for name in names if "subset=robotstxt" not in name and name]
        else:
            files += [path] if "://" in path else input_paths.expand_paths([path], (".parquet",), check_types=False)
    if other := next((path for path in files if not path.endswith(".parquet")), None):
        raise InputError(f"{other}: is not an index of Common Crawl; use *.parquet or cc-index-table.paths")
    if not files:
        raise InputError(f"{', '.join(paths)}: name no file of an index")
    with shards.open_stream(files[0]) as stream:
        open_index_file(files[0], stream)  # raises for other tables now, not after the live pages
    return files


def _check_records(index: str, folder: str) -> None:
    """Raise InputError if a folder has none of the first files that an index names; single ones may be missing."""
    with shards.open_stream(index) as stream, shards.damage_reported(index):
        batches = open_index_file(index, stream).iter_batches(_CHECKED_CAPTURES, columns=["warc_filename"])
        files = next(batches, INDEX_SCHEMA.empty_table())["warc_filename"]
    names = files.unique().drop_null().to_pylist()[:_CHECKED_FILES]
    if names and not any(storage.exists(storage.join(folder, name)) for name in names):
        raise InputError(f"{folder}: has none of the files that the index names, such as {names[0]}")


def look_up(run: StageRun, link_shards: Sequence[LinkShard], lookup: Lookup) -> None:
    """Look up all wanted links in the index, and store the nearest page of each; redirects are looked up again."""
    run.map(_find_wanted, link_shards, lookup, phase=f"{lookup.phase}-wanted", work=True)
    for number in range(lookup.limit):
        lookup = dataclasses.replace(lookup, number=number)
        phase, wanted = lookup.phase, [storage.join(run.output, name) for name in lookup.wanted]
        if not any(storage.map_files(shards.count_rows, wanted)):
            return
        index = range(len(lookup.index))
        run.map(join_index, index, lookup, name=str, phase=f"{phase}-index", work=True, total=len(index), unit="files")
        run.map(_store_pages, link_shards, lookup, phase=f"{phase}-pages", work=True)


def _find_wanted(shard: LinkShard, lookup: Lookup) -> TaskResult:
    keyed = set[tuple[str, int, int, int | None, str]]()
    for link in wanted_links(lookup.fetch, shard, lookup.token):
        # Few pages were archived with the tracking parameters of the link; without a query, the keys are the same.
        urls = [link.url, canonical_url(link.url) or link.url] if "?" in link.url else [link.url]
        keyed |= {(key, shard.index, link.outcome.link, link.at, link.url) for key in map(surt_key, urls) if key}
    return write_wanted(lookup, shard.index, keyed)


def write_wanted(lookup: Lookup, shard: int, links: Collection[tuple[str, int, int, int | None, str]]) -> TaskResult:
    """Write the links of a shard to look up, as rows of `WANTED_SCHEMA`, as a work file."""
    with shards.write_shard(lookup.fetch.output, lookup.wanted[shard], WANTED_SCHEMA) as wanted:
        for link in sorted(links):
            wanted.write(dict(zip(WANTED_SCHEMA.names, link, strict=True)))
    return TaskResult(files=(wanted.entry,))


def open_index_file(path: str, stream: BinaryIO) -> pq.ParquetFile:
    """Open a file of an index; raise InputError if it is not one."""
    file = shards.open_parquet(stream, path)
    shards.require_columns(path, file.schema_arrow.names, INDEX_SCHEMA.names)
    return file


def join_index(number: int, lookup: Lookup) -> TaskResult:
    """Write the captures of wanted links in one of the files of an index as a work file with a bucket per shard.

    Row groups between whose keys no link lies are not read.
    """
    output, name, path = lookup.fetch.output, lookup.captures(number), lookup.index[number]
    wanted = [storage.join(output, file) for file in lookup.wanted]
    with shards.open_stream(path) as stream, write_buckets(storage.join(output, name), CAPTURE_SCHEMA) as written:
        file = open_index_file(path, stream)
        ranges = _key_ranges(file)
        first, last = min(map(min, ranges), default=""), max(map(max, ranges), default="")
        for links in _wanted_between(wanted, first, last):
            for group, (low, high) in enumerate(ranges):
                near = links.filter((pc.field(KEY) >= low) & (pc.field(KEY) <= high))
                if not near.num_rows or not (rows := read_row_group(path, file, group, near[KEY])).num_rows:
                    continue
                near = near.filter(pc.is_in(near[KEY], value_set=rows[KEY].combine_chunks()))
                captures = rows.join(near, KEY, join_type="inner", use_threads=False)
                for batch in _useful(captures, lookup.fetch.config.archive_window).combine_chunks().to_batches():
                    written.write(batch.select(CAPTURE_SCHEMA.names).cast(CAPTURE_SCHEMA), batch["shard"].to_numpy())
    progress.advance(1)
    return TaskResult(files=(written.entry(name),))


def read_row_group(path: str, file: pq.ParquetFile, number: int, keys: pa.ChunkedArray) -> pa.Table:
    """Return the rows with some keys (`INDEX_SCHEMA`). The other columns are read only if a key occurs."""
    with shards.damage_reported(path):
        present = file.read_row_group(number, [KEY], use_threads=False)[KEY].cast(pa.string())
        is_wanted = pc.is_in(present, value_set=keys.combine_chunks())
        if not pc.any(is_wanted).as_py():
            return INDEX_SCHEMA.empty_table()
        rows = file.read_row_group(number, INDEX_SCHEMA.names, use_threads=False).filter(is_wanted)
        return rows.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)


def _key_ranges(file: pq.ParquetFile) -> list[tuple[str, str]]:
    """Return the first and last key of each row group; any may occur if there are no statistics, or they are cut."""
    metadata, column = file.metadata, file.schema_arrow.names.index(KEY)
    groups = [metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups)]
    return [(keys.min, keys.max) if keys and keys.has_min_max else ("", chr(0x10FFFF)) for keys in groups]


def _wanted_between(paths: Sequence[str], first: str, last: str) -> Iterator[pa.Table]:
    """Yield the wanted links between two keys, those of some shards at a time."""
    tables, rows = list[pa.Table](), 0
    between = (pc.field(KEY) >= first) & (pc.field(KEY) <= last)
    for path in paths:
        with shards.open_stream(path) as stream, shards.damage_reported(path):
            tables.append(pq.read_table(stream, columns=_JOINED, filters=between, use_threads=False))
        rows += tables[-1].num_rows
        if rows >= _MAX_WANTED or path == paths[-1]:
            yield pa.concat_tables(tables)
            tables, rows = [], 0


def _useful(captures: pa.Table, window_days: int | None) -> pa.Table:
    """Return pages and redirects, of each link and URL the nearest in time; of a link without a time, the latest."""
    status, types = captures["fetch_status"], pa.array(sorted(TEXT_TYPES))
    is_page = pc.and_(pc.equal(status, 200), pc.is_in(captures["content_mime_detected"], value_set=types))
    captures = captures.filter(pc.or_(is_page, pc.is_in(status, value_set=pa.array(sorted(REDIRECTS), status.type))))
    seconds = captures["fetch_time"].cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    distance = pc.coalesce(pc.abs(pc.subtract(seconds, captures["at"])), pc.negate(seconds)).to_numpy()
    link, shard = captures["link"].to_numpy(), captures["shard"].to_numpy()
    url = captures["url"].combine_chunks().dictionary_encode().indices.to_numpy()
    ranks = distance + np.where(captures["fetch_status"].to_numpy() == 200, 0, _REDIRECT_RANK)
    order = np.lexsort((ranks, url, link, shard))
    if window_days is not None:
        order = order[~(distance[order] > window_days * 86400)]
    starts = np.flatnonzero(sum(np.diff(column[order], prepend=-1) != 0 for column in (url, link, shard)))
    position = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    captures = captures.append_column("rank", pa.array(ranks))
    return captures.take(pa.array(order[position < _CAPTURES_PER_URL]))


def _store_pages(shard: LinkShard, lookup: Lookup) -> TaskResult:
    """Read the captures of a shard's links, nearest first, until one is a page; write the redirects to look up next."""
    fetch, token = lookup.fetch, lookup.token
    rows = shards.read_rows(storage.join(fetch.output, lookup.wanted[shard.index]), ["link", "url"])
    urls = {row["link"]: row["url"] for row in rows}
    links = {wanted.outcome.link: wanted for wanted in wanted_links(fetch, shard, token) if wanted.outcome.link in urls}
    paths = [storage.join(fetch.output, lookup.captures(number)) for number in range(len(lookup.index))]
    captures = pa.Table.from_batches(read_bucket(paths, CAPTURE_SCHEMA, shard.index), CAPTURE_SCHEMA).sort_by("rank")
    read = functools.partial(read_record, lookup.path_of, fetch.config.max_page_bytes)

    def find(item: tuple[int, list[dict[str, Any]]]) -> tuple[Capture | None, Capture | None, Counter[str]]:
        return find_page(item[1], read, links[item[0]], urls[item[0]], fetch.config)

    redirects: list[tuple[str, int, int, int | None, str]] = []
    counts: Counter[str] = Counter()
    with SegmentWriter(fetch.segments_folder(shard)) as writer, ThreadPoolExecutor(_THREADS) as threads:
        for part in _parts(list(links), captures):
            for (link, _), (page, target, refused) in zip(part, threads.map(find, part), strict=True):
                counts.update(refused)
                if target is not None and lookup.number + 1 < lookup.limit and (key := surt_key(target.url)):
                    redirects.append((key, shard.index, link, int(target.captured_at.timestamp()), target.url))
                else:
                    record_answer(writer, links[link], token, page, refused)
                progress.advance(1)
    result = write_wanted(dataclasses.replace(lookup, number=lookup.number + 1), shard.index, redirects)
    return TaskResult(files=result.files, counts={f"refused_{reason}": count for reason, count in counts.items()})


def _parts(links: Sequence[int], captures: pa.Table) -> Iterator[list[tuple[int, list[dict[str, Any]]]]]:
    """Yield the links with their captures, nearest first, in parts that are read at a time."""
    for start in range(0, len(links), _LINKS):
        rows: dict[int, list[dict[str, Any]]] = {link: [] for link in links[start : start + _LINKS]}
        for row in captures.filter(pc.is_in(captures["link"], value_set=pa.array(rows, pa.int32()))).to_pylist():
            rows[row["link"]].append(row)
        # In order of the files of the archive, which a store of whole files reads faster.
        order = sorted(rows.items(), key=lambda item: min(map(_PLACE, item[1]), default=("", 0)))
        yield from (order[number : number + _READ_AHEAD] for number in range(0, len(order), _READ_AHEAD))
