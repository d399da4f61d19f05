"""The links to fetch, from the shards that scrape wrote or any list of URLs, and the URL that is requested for each.

Links of one registered domain are always in one shard, so that only one task requests from the hosts of that domain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import urljoin, urlsplit

import pyarrow as pa
import requests
from requests.utils import urldefragauth

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.engine.journal import WORK, is_unfinished
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.records import input_paths, inputs
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.inputs import InputFile
from pipelines.records.schemas import make_schema
from pipelines.records.url_lists import TOO_LONG, URL_LIST_SUFFIXES, BadRow, read_urls
from pipelines.stages.fetch.outcomes import Failure
from pipelines.storage.compression import strip_compression

LIST_SHARD_BYTES = 1 << 20
_MAX_LIST_SHARDS = 256
# At most 32 MB, since a URL of a list has at most 32 KiB.
_BATCH_URLS = 1000
_BUCKETS = WORK + "/list-{:05d}.buckets"
_BUCKET_SCHEMA = make_schema(url="string")
_SCHEMES = ("http://", "https://")
# warcio reads at most 16,384 bytes of a line, such as `WARC-Target-URI: ` and the URL.
_MAX_URL_BYTES = 16_000
_PORTS = {"http": 80, "https": 443}
# URLs that requests would send as they are: four in five links of Reddit, which it takes most of the time to prepare.
_PLAIN = re.compile(
    r"https?://(?:(?:[a-z][a-z0-9-]{0,61}[a-z0-9]\.)+[a-z]{2,63}|[0-9]{1,3}(?:\.[0-9]{1,3}){3})"
    r"(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"
    r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_~.-]*)*/(?:[A-Za-z0-9_~-][A-Za-z0-9_~.-]*)?(?:\?[A-Za-z0-9_~.=&+;,:@/-]+)?"
)


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
    if len(paths) == 1 and not _is_list(paths[0]):
        folder = inputs.open_stage(paths[0], ("scrape",))
        files = enumerate(folder.files("links-", ".parquet"))
        link_shards = tuple(LinkShard(index, (file,), is_list=False) for index, file in files)
        return LinkInput("links", link_shards, folder.manifest.fingerprint(), folder.manifest.records_out)
    for path in paths:
        if not storage.is_glob(path) and has_manifest(path):
            raise InputError(f"{path}: is the output of a stage; use one such folder alone, or lists of URLs")
    paths = input_paths.expand_paths(paths, URL_LIST_SUFFIXES)
    lists = tuple(InputFile(path, storage.size_bytes(path)) for path in paths)
    parts = min(_MAX_LIST_SHARDS, max(1, -(-sum(file.size_bytes for file in lists) // shard_bytes)))
    link_shards = tuple(LinkShard(index, lists, parts) for index in range(parts))
    return LinkInput("urls", link_shards, inputs.fingerprint_files(paths), None)


def divide_lists(run: StageRun, link_shards: Sequence[LinkShard]) -> None:
    """Write each list into a work file with a bucket per shard, unless one shard has all links of the lists."""
    lists, parts = link_shards[0].files, link_shards[0].parts
    if parts > 1:
        numbers, sizes, context = range(len(lists)), [file.size_bytes for file in lists], (lists, parts, run.output)
        run.map(_divide, numbers, context, name=str, phase="divide", work=True, unit="bytes", cost=sizes.__getitem__)


def _divide(number: int, context: tuple[Sequence[InputFile], int, str]) -> TaskResult:
    lists, parts, output = context
    urls, name = _read_file(lists[number].path, report_bytes=True), _BUCKETS.format(number)
    with write_buckets(storage.join(output, name), _BUCKET_SCHEMA) as written:
        while batch := list(itertools.islice(urls, _BATCH_URLS)):
            # Canonical, so that all spellings of a host are in one shard.
            domains = (registered_domain(canonical_url(url) or url) or "" for url in batch)
            buckets = [zlib.crc32(domain.encode()) % parts for domain in domains]
            written.write(pa.record_batch([batch], schema=_BUCKET_SCHEMA), buckets)
    return TaskResult(files=(written.entry(name),))


def read_links(shard: LinkShard, output: str) -> list[str]:
    """Return the URLs of a shard, in the order of its files; `divide_lists` has written into the folder `output`.

    Raises DamagedShardError if a file does not match its manifest, InputError if it has no column `url`.
    """
    if shard.parts > 1:
        paths = [storage.join(output, _BUCKETS.format(number)) for number in range(len(shard.files))]
        return [url for batch in read_bucket(paths, _BUCKET_SCHEMA, shard.index) for url in batch["url"].to_pylist()]
    for file in shard.files:
        file.verify()
    return [url for file in shard.files for url in _read_file(file.path)]


def _is_list(path: str) -> bool:
    """Return whether a path means lists of URLs rather than the folder of a stage, finished or not."""
    if storage.is_glob(path) or storage.is_file(path) or strip_compression(path).endswith(URL_LIST_SUFFIXES):
        return True
    return bool(storage.list_folder(path) and not has_manifest(path) and not is_unfinished(path))


def _read_file(path: str, report_bytes: bool = False) -> Iterator[str]:
    for url in read_urls(path, report_bytes=report_bytes):
        # A URL that is missing or not UTF-8 is a link like any other, whose outcome says what is wrong with it.
        if isinstance(url, BadRow):
            text = url.content.decode("utf-8", "replace").strip()
            # Only the beginning of such a URL was kept, which must not be requested.
            yield f"(too long) {text}" if url.reason == TOO_LONG else text
        else:
            yield url or ""


def request_url(url: str) -> str:
    """Return the form of a URL that is sent: ASCII, escaped, without fragment, user and password.

    Raises Failure for a scheme other than http and https, or an invalid host.
    """
    if len(url) <= _MAX_URL_BYTES and _PLAIN.fullmatch(url):
        return url
    if not url.strip().lower().startswith(_SCHEMES):
        raise Failure("bad_url", "is not an http or https URL")
    prepared = requests.PreparedRequest()
    try:
        prepared.prepare_url(url.strip(), None)
        encoded = str(urldefragauth(str(prepared.url)))
        url_origin(encoded)
        (urlsplit(encoded).hostname or "").encode("idna")  # labels must have 1 to 63 bytes
    except ValueError as error:  # what requests and urllib raise for URLs are all ValueErrors
        raise Failure("bad_url", str(error)) from error
    if not encoded.isascii():
        raise Failure("bad_url", "cannot be written in ASCII")
    if len(encoded) > _MAX_URL_BYTES:
        raise Failure("bad_url", f"has more than {_MAX_URL_BYTES} bytes ({len(encoded)})")
    return encoded


def redirect_url(base: str, location: str) -> str:
    """Resolve a `Location` header; raise Failure if the result cannot be requested."""
    target = location
    # http.client reads headers as Latin-1; servers write UTF-8.
    with contextlib.suppress(UnicodeError):
        target = location.encode("latin-1").decode("utf-8")
    try:
        return request_url(urljoin(base, target.strip()))
    except (Failure, ValueError) as error:
        raise Failure("bad_redirect", f"{location[:200]}: {error}") from error


def url_origin(url: str) -> str:
    """Return scheme, host and port of a URL from `request_url`: the scope of robots.txt and of the per-host delay."""
    return _origin_of("/".join(url.split("/", 3)[:3]))


@functools.lru_cache(maxsize=65_536)
def _origin_of(scheme_and_host: str) -> str:
    parts = urlsplit(scheme_and_host)
    if not parts.hostname:
        raise Failure("bad_url", "has no host")
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"


def classify_links(links: Sequence[str], max_per_domain: int | None) -> Iterator[tuple[int, str, Failure | None]]:
    """Yield the position of each link, its request, and why it is not to be sent."""
    seen, pages = set[str](), Counter[str | None]()
    for link, url in enumerate(links):
        try:
            wire_url = request_url(url)
        except Failure as problem:
            yield link, "", problem
            continue
        failure: Failure | None = None
        if wire_url in seen:
            failure = Failure("duplicate_url", "an earlier link is the same request")
        elif max_per_domain:
            pages[domain := registered_domain(wire_url)] += 1
            if pages[domain] > max_per_domain:
                failure = Failure("domain_limit", f"{max_per_domain} earlier links are of {domain}")
        seen.add(wire_url)
        yield link, wire_url, failure
