"""The archives that a fetch asks for links that are gone, and the columnar index of Common Crawl.

The index is sorted by SURT key (`com,example)/x`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence

import surt

from pipelines import storage
from pipelines.engine.run import StageRun
from pipelines.errors import InputError, UsageError
from pipelines.format import mask_credentials
from pipelines.records import inputs, shards
from pipelines.stages.fetch.captures import read_record
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.lookups import IndexFile, Lookup, look_up, open_index_file
from pipelines.stages.fetch.segments import FetchContext
from pipelines.stages.fetch.wayback import query_wayback
from pipelines.storage.compression import open_decompressed, strip_compression

# How often a page is looked up in Common Crawl: once, and after each redirect.
_LOOKUPS = 4
_PATHS_SUFFIX = ".paths"


def archives_input(config: FetchConfig) -> str | None:
    """Return what stands for the archives in the manifest: other archives, or more requests, are an addition.

    None without archives. Raises UsageError for an archive without its index, InputError if that cannot be read.
    """
    if "commoncrawl" in config.archive and not config.cc_index:
        raise UsageError("--archive commoncrawl: needs --cc-index, the index of a crawl (see docs/fetch.md)")
    if not re.match("https?://[^/]", config.wayback_url):
        raise UsageError(f"--wayback-url {config.wayback_url}: is not an http or https URL")
    if not config.archive:
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
            read = functools.partial(
                read_record, functools.partial(storage.join, config.cc_records), config.max_page_bytes
            )
            lookup = Lookup(context, f"{name}:{names}", index, surt_key, read, _LOOKUPS, config.cc_records)
            look_up(run, link_shards, lookup)
        else:
            query_wayback(run, link_shards, context, name)


def surt_key(url: str) -> str | None:
    """Return the key of a URL in the indexes of web archives; None if it has none."""
    try:
        return str(surt.surt(url))
    except (ValueError, UnicodeError, AttributeError, TypeError):  # what the package raises for malformed URLs
        return None


def open_index(paths: Sequence[str], records: str) -> list[IndexFile]:
    """Return the files of a columnar index: Parquet (also by folder or glob), or lists of them (`*.paths`).

    A list, also compressed, names files relative to `records`, one per line, as Common Crawl publishes them. Raises
    InputError for other files.
    """
    files: list[str] = []
    for path in paths:
        if strip_compression(path).endswith(_PATHS_SUFFIX):
            with open_decompressed(path) as stream:
                names = [line.decode().strip() for line in stream]
            files += [storage.join(records, name) for name in names if "subset=robotstxt" not in name and name]
        else:
            files += [path] if "://" in path else inputs.expand_paths([path], (".parquet",), check_types=False)
    if other := next((path for path in files if not path.endswith(".parquet")), None):
        raise InputError(f"{other}: is not an index of Common Crawl; use *.parquet or cc-index-table.paths")
    if not files:
        raise InputError(f"{', '.join(paths)}: name no file of an index")
    with shards.open_stream(files[0]) as stream:
        open_index_file(files[0], stream)  # raises for other tables now, not after the live pages
    return [IndexFile(f"index-{number:05d}", path) for number, path in enumerate(files)]
