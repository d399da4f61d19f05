"""The links to fetch: the shards that scrape wrote, or anybody's list of URLs.

Links of one registered domain are always in one shard, so that one task alone asks that domain's hosts.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.algorithms.web.urls import registered_domain
from pipelines.core import inputs, shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError
from pipelines.core.inputs import InputFile
from pipelines.core.journal import is_unfinished
from pipelines.core.manifest import has_manifest

# Every shard of a foreign list reads the whole list and keeps its part: cheap beside the fetching.
_FOREIGN_SHARD_BYTES = 8 << 20
_FOREIGN_SHARDS = 256
_SUFFIXES = (".parquet", ".txt")
_KINDS = ".txt (one URL a line, also compressed) or .parquet (a column url)"


@dataclasses.dataclass(frozen=True)
class LinkShard:
    """The links of one task: all of its files, or those whose domain falls into one of `parts`."""

    index: int
    files: tuple[InputFile, ...]
    parts: int = 1

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"pages-{self.index:05d}"


@dataclasses.dataclass(frozen=True)
class LinkInput:
    """All links: their shards, a hash of their content, their number where it is known.

    `name` is that of the input in the manifest, by which extract knows whose order the pages have.
    """

    name: str
    shards: tuple[LinkShard, ...]
    fingerprint: str
    records: int | None


def open_links(paths: str | Sequence[str]) -> LinkInput:
    """Open the folder that scrape wrote, or lists of URLs: Parquet with a column `url`, or `.txt` with one a line.

    Raises InputError where there are none.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    for path in paths:
        if _is_foreign_file(path):
            raise InputError(f"{path}: is no list of URLs; give {_KINDS}, or the folder of `webtext scrape`")
    if len(paths) == 1 and not _is_list(paths[0]):
        return _scraped(inputs.open_stage(paths[0], ("scrape",)))
    for path in paths:
        if not storage.is_glob(path) and has_manifest(path):
            raise InputError(f"{path}: is the output of a stage; give one such folder alone, or lists of URLs")
    return _foreign(inputs.expand_paths(paths, _SUFFIXES))


def read_links(shard: LinkShard) -> list[str]:
    """Return the URLs of a shard, in the order of its files.

    Raises DamagedShardError where a file is not as its manifest says, InputError where it has no column `url`.
    """
    for file in shard.files:
        file.verify()
    urls = (url for file in shard.files for url in _urls(file.path))
    if shard.parts == 1:
        return list(urls)
    return [url for url in urls if zlib.crc32((registered_domain(url) or "").encode()) % shard.parts == shard.index]


def _is_foreign_file(path: str) -> bool:
    named = storage.is_glob(path) or strip_compression(path).endswith(_SUFFIXES)
    return not named and storage.exists(path) and not storage.is_folder(path)


def _is_list(path: str) -> bool:
    """Tell whether a path means lists of URLs, and not the folder of a stage, finished or not."""
    if storage.is_glob(path) or strip_compression(path).endswith(_SUFFIXES):
        return True
    if not storage.is_folder(path) or has_manifest(path) or is_unfinished(path):
        return False
    return bool(storage.list_folder(path))


def _scraped(folder: inputs.StageFolder) -> LinkInput:
    files = folder.files("links-", ".parquet")
    numbered = tuple(LinkShard(index, (file,)) for index, file in enumerate(files))
    return LinkInput("links", numbered, folder.fingerprint, folder.manifest.records_out)


def _foreign(paths: Sequence[str]) -> LinkInput:
    files = tuple(InputFile(path, storage.size_bytes(path)) for path in paths)
    total_bytes = sum(file.size_bytes for file in files)
    parts = min(_FOREIGN_SHARDS, max(1, -(-total_bytes // _FOREIGN_SHARD_BYTES)))
    numbered = tuple(LinkShard(index, files, parts) for index in range(parts))
    return LinkInput("urls", numbered, inputs.fingerprint_files(paths), None)


def _urls(path: str) -> Iterator[str]:
    kind = strip_compression(path)
    if kind.endswith(".parquet"):
        yield from _parquet_urls(path)
    elif kind.endswith(".txt"):
        yield from _listed_urls(path)
    else:
        raise InputError(f"{path}: its kind is unknown; lists of URLs are {_KINDS}")


def _parquet_urls(path: str) -> Iterator[str]:
    for batch in shards.read_batches(path, ["url"]):
        column = batch.column("url")
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InputError(f"{path}: column 'url' is {column.type}, not text")
        # A missing URL is a link like any other, with the outcome bad_url.
        yield from ("" if url is None else url for url in column.to_pylist())


def _listed_urls(path: str) -> Iterator[str]:
    with open_decompressed(path) as stream:
        for line in stream:
            url = line.decode("utf-8", "replace").removeprefix("\ufeff").strip()
            if url:
                yield url
