"""The links to fetch: the shards that scrape wrote, or any list of URLs.

Links of one registered domain are always in one shard, so that only one task requests from the hosts of that domain.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import has_manifest
from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.records.inputs import InputFile
from pipelines.records.url_lists import TOO_LONG, URL_LIST_SUFFIXES, BadRow, read_urls
from pipelines.storage.compression import strip_compression

# Every shard of a list reads the whole list and keeps its part, which is cheap compared with fetching.
LIST_SHARD_BYTES = 1 << 20
_MAX_LIST_SHARDS = 256
_FORMATS = ".txt (one URL per line), .csv, .tsv or .parquet (a column url), .jsonl (a field url), also compressed"


@dataclasses.dataclass(frozen=True)
class LinkShard:
    """The links of one task: all links of its files, or those whose domain hashes to `index` of `parts`."""

    index: int
    files: tuple[InputFile, ...]
    parts: int = 1
    is_list: bool = True

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"pages-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class LinkInput:
    """All links: their shards, a hash of their content, and their number if it is known.

    `name` is the name of the input in the manifest, from which extract knows whose order the pages have.
    """

    name: str
    shards: tuple[LinkShard, ...]
    fingerprint: str
    records: int | None


def open_links(paths: str | Sequence[str], shard_bytes: int = LIST_SHARD_BYTES) -> LinkInput:
    """Open the folder that scrape wrote, or lists of URLs: Parquet with a column `url`, or `.txt` with one per line.

    A list is split into shards of about `shard_bytes`. Raises InputError if there are no links.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    for path in paths:
        if not _has_list_name(path) and storage.exists(path) and not storage.is_folder(path):
            raise InputError(f"{path}: is not a list of URLs; use {_FORMATS}, or the folder of `webtext scrape`")
    if len(paths) == 1 and not _is_list(paths[0]):
        folder = inputs.open_stage(paths[0], ("scrape",))
        files = enumerate(folder.files("links-", ".parquet"))
        link_shards = tuple(LinkShard(index, (file,), is_list=False) for index, file in files)
        return LinkInput("links", link_shards, folder.fingerprint, folder.manifest.records_out)
    for path in paths:
        if not storage.is_glob(path) and has_manifest(path):
            raise InputError(f"{path}: is the output of a stage; use one such folder alone, or lists of URLs")
    paths = inputs.expand_paths(paths, URL_LIST_SUFFIXES, check_types=False)
    lists = tuple(InputFile(path, storage.size_bytes(path)) for path in paths)
    parts = min(_MAX_LIST_SHARDS, max(1, -(-sum(file.size_bytes for file in lists) // shard_bytes)))
    link_shards = tuple(LinkShard(index, lists, parts) for index in range(parts))
    return LinkInput("urls", link_shards, inputs.fingerprint_files(paths), None)


def read_links(shard: LinkShard) -> list[str]:
    """Return the URLs of a shard, in the order of its files.

    Raises DamagedShardError if a file does not match its manifest, InputError if it has no column `url`.
    """
    for file in shard.files:
        file.verify()
    urls = (url for file in shard.files for url in _read_file(file.path))
    if shard.parts == 1:
        return list(urls)
    # Canonical, so that all spellings of a host are in one shard.
    domains = ((url, registered_domain(canonical_url(url) or url) or "") for url in urls)
    return [url for url, domain in domains if zlib.crc32(domain.encode()) % shard.parts == shard.index]


def _has_list_name(path: str) -> bool:
    return storage.is_glob(path) or strip_compression(path).endswith(URL_LIST_SUFFIXES)


def _is_list(path: str) -> bool:
    """Return whether a path means lists of URLs rather than the folder of a stage, finished or not."""
    return _has_list_name(path) or bool(
        storage.list_folder(path) and not has_manifest(path) and not is_unfinished(path)
    )


def _read_file(path: str) -> Iterator[str]:
    if not strip_compression(path).endswith(URL_LIST_SUFFIXES):
        raise InputError(f"{path}: unknown format; lists of URLs are {_FORMATS}")
    for url in read_urls(path):
        # A URL that is missing or not UTF-8 is a link like any other, whose outcome says what is wrong with it.
        if isinstance(url, BadRow):
            text = url.content.decode("utf-8", "replace").strip()
            # Only the beginning of such a URL was kept, which must not be requested.
            yield f"(too long) {text}" if url.reason == TOO_LONG else text
        else:
            yield url or ""
