"""Pages from Common Crawl: a join with its index for all links at once, then one ranged read per page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.core import storage
from pipelines.core.run import StageRun
from pipelines.stages.fetch.archive_index import open_index, surt_key
from pipelines.stages.fetch.captures import Capture, read_record
from pipelines.stages.fetch.context import FetchContext
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.lookups import Lookup, look_up

# How often a page is looked up: once, and after each redirect.
_LOOKUPS = 4


def ask_common_crawl(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, token: str) -> None:
    """Look up all wanted links in the index, and store the nearest page of each."""
    index = open_index(context.config.cc_index, context.config.cc_records)
    look_up(run, link_shards, context, Lookup(token, surt_key, _read_capture, _LOOKUPS), index)


def _read_capture(fetch: FetchContext, row: dict[str, Any]) -> Capture:
    return read_record(storage.join(fetch.config.cc_records, row["file"]), row, fetch.config.max_bytes)
