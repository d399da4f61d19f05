"""The archives that a fetch asks for links that are gone, in the order of the config."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.run import StageRun
from pipelines.errors import InputError, UsageError
from pipelines.stages.fetch.archive_index import open_index, surt_key
from pipelines.stages.fetch.captures import Capture, read_record
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.known import FetchContext
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.lookups import Lookup, look_up
from pipelines.stages.fetch.wayback import ask_wayback

# Options that only have a meaning with an archive, or with any.
_OPTIONS = {
    "archive_for": "", "archive_window": "", "cc_index": "commoncrawl", "cc_records": "commoncrawl",
    "wayback_url": "wayback", "wayback_rate": "wayback", "wayback_requests": "wayback",
}  # fmt: skip
# How often a page is looked up in Common Crawl: once, and after each redirect.
_LOOKUPS = 4


def archives_input(config: FetchConfig) -> str | None:
    """Return what stands for the archives in the manifest: other archives, or more requests, are an addition.

    None without archives. Raises UsageError for an archive without its index, InputError if that is none.
    """
    if "commoncrawl" in config.archive and not config.cc_index:
        raise UsageError("--archive commoncrawl: needs --cc-index, the index of a crawl (see docs/fetch.md)")
    for field in dataclasses.fields(config):
        archive = _OPTIONS.get(field.name)
        is_asked = archive in config.archive or (archive == "" and config.archive)
        if archive is not None and not is_asked and getattr(config, field.name) != field.default:
            flag = field.name.replace("_", "-")
            raise UsageError(f"--{flag} has no effect without {f'--archive {archive}'.strip()}")
    if not re.match("https?://[^/]", config.wayback_url):
        raise UsageError(f"--wayback-url {config.wayback_url}: is no http or https URL")
    if not config.archive:
        return None
    if config.cc_index:
        if storage.is_local(config.cc_records) and not storage.is_folder(config.cc_records):
            raise InputError(f"{config.cc_records}: --cc-records: no such folder")
        storage.file_system(config.cc_records)  # raises for an unknown scheme
        open_index(config.cc_index, config.cc_records)
    asked = [config.archive, config.archive_for, config.archive_window, config.cc_index, config.wayback_requests]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def ask_archives(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext) -> None:
    """Ask each archive for the pages that are still missing."""
    config = context.config
    if config.archive_window is not None and link_shards[0].is_list:
        run.note("--archive-window has no effect: links of lists have no dates")
    for name in config.archive:
        if name == "commoncrawl":
            # A page that one index lacks, another may have.
            names = hashlib.sha256("\n".join(config.cc_index).encode()).hexdigest()[:8]
            index = open_index(config.cc_index, config.cc_records)
            lookup = Lookup(f"{name}:{names}", surt_key, _read_capture, _LOOKUPS, config.cc_records)
            look_up(run, link_shards, context, lookup, index)
        else:
            ask_wayback(run, link_shards, context, name)


def _read_capture(fetch: FetchContext, row: dict[str, Any]) -> Capture:
    return read_record(storage.join(fetch.config.cc_records, row["file"]), row, fetch.config.max_bytes)
