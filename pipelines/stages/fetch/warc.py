"""HTTP exchanges as WARC 1.1 records, one gzip member each, so that a record can be read at its offset.

The body is stored as received: in its content encoding, but without chunked framing. Headers that no longer match the
body are renamed to `X-Archive-Orig-...`.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import http.client
import itertools
import re
import struct
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

from isal import igzip_lib, isal_zlib

from pipelines.algorithms.web.urls import id_of_url
from pipelines.records.archives import read_archive
from pipelines.stages.fetch.exchange import Exchange, Response

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE_ASCII = "".join(map(chr, range(0x20, 0x7F)))
# Pages become 17% larger than at zlib's best level, 15 times as fast. Level 0 builds no code tables: a request takes a
# fifth of the time, and 130 bytes more.
_LEVEL, _SMALL_LEVEL, _SMALL_BYTES = 2, 0, 1024
# The header of a gzip member, also if a comment follows, and the most bytes of a block that is not compressed.
_GZIP_HEADER, _COMMENT_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x1f\x8b\x08\x10\0\0\0\0\0\xff"
_STORED_BYTES = 65_535
_BASE32 = ["".join(pair) for pair in itertools.product("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", repeat=2)]


def exchange_records(exchange: Exchange) -> bytes:
    """Return the response record of an exchange, followed by its request record, as gzip members."""
    response = exchange.response
    assert response is not None, "an exchange without a response has no record"
    date = _format_date(exchange.started_at)
    origin = {"WARC-IP-Address": exchange.peer, "WARC-Truncated": response.truncated}
    answered = {"WARC-Concurrent-To": _record_id("response", exchange.url, date)}
    request = _record("request", exchange.url, date, exchange.request, b"", answered)
    return response_record(exchange.url, date, response, origin) + request


def response_record(url: str, date: str, response: Response, headers: Mapping[str, str | None]) -> bytes:
    """Return a response as a record of a date, in the form of WARC-Date; headers that are None are left out."""
    reason = _ascii(response.reason) or http.client.responses.get(response.status, "Unknown")
    lines = (f"{name}: {value}\r\n" for name, value in _stored_headers(response))
    head = f"{response.http_version} {response.status} {reason}\r\n{''.join(lines)}\r\n".encode()
    return _record("response", url, date, head, response.body or b"", headers, is_coded=response.coding is not None)


def _record(
    kind: str, url: str, date: str, http_head: bytes, body: bytes, headers: Mapping[str, str | None],
    is_coded: bool = False,
) -> bytes:  # fmt: skip
    fields = {"WARC-Target-URI": url, **headers, "WARC-Payload-Digest": _digest(body)}
    return _member(kind, url, date, fields, f"application/http; msgtype={kind}", (http_head, body), is_coded)


def warcinfo_record(name: str, created_at: dt.datetime, fields: Mapping[str, str]) -> bytes:
    """Return the first record of a WARC file: the software that wrote it, and its settings."""
    block = "".join(f"{key}: {value}\r\n" for key, value in fields.items()).encode()
    headers = {"WARC-Filename": name}
    return _member("warcinfo", name, _format_date(created_at), headers, "application/warc-fields", (block,))


def _member(
    kind: str, name: str, date: str, headers: Mapping[str, str | None], content: str, block: Sequence[bytes],
    is_coded: bool = False,
) -> bytes:  # fmt: skip
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": _record_id(kind, name, date),
        "WARC-Date": date,
        **headers,
        "WARC-Block-Digest": _digest(*block),
        "Content-Type": content,
        "Content-Length": str(sum(map(len, block))),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    record = b"".join((b"WARC/1.1\r\n", lines.encode(), b"\r\n", *block, b"\r\n\r\n"))
    if is_coded:
        return _store(record)
    return igzip_lib.compress(record, _SMALL_LEVEL if len(record) <= _SMALL_BYTES else _LEVEL, igzip_lib.COMP_GZIP)


def _store(record: bytes) -> bytes:
    """Return a gzip member with the bytes as they are (RFC 1951, 3.2.4), in a sixth of the time of compressing them."""
    pieces = [_GZIP_HEADER]
    for start in range(0, len(record), _STORED_BYTES):
        part = record[start : start + _STORED_BYTES]
        is_last = start + len(part) == len(record)
        pieces += [struct.pack("<?HH", is_last, len(part), len(part) ^ 0xFFFF), part]
    pieces.append(struct.pack("<II", isal_zlib.crc32(record), len(record) & 0xFFFFFFFF))
    return b"".join(pieces)


@functools.lru_cache(maxsize=4)  # a response has its own, and its request names it
def _record_id(kind: str, url: str, date: str) -> str:
    return f"<{uuid.uuid5(uuid.NAMESPACE_URL, f'{kind} {date} {url}').urn}>"


def _format_date(date: dt.datetime) -> str:
    return date.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _digest(*parts: bytes) -> str:
    sha1 = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        sha1.update(part)
    bits = int.from_bytes(sha1.digest())
    return "sha1:" + "".join([_BASE32[bits >> shift & 0x3FF] for shift in range(150, -1, -10)])  # base64's is slow


def _stored_headers(response: Response) -> Iterable[tuple[str, str]]:
    for name, value in response.headers:
        if not _TOKEN.fullmatch(name):
            continue  # no HTTP reader accepts such a line as a header
        lower = name.lower()
        if lower == "transfer-encoding":
            yield f"X-Archive-Orig-{name}", _ascii(value)
        elif lower == "content-encoding" and value != response.coding:
            if response.coding is not None:
                yield name, response.coding
            yield f"X-Archive-Orig-{name}", _ascii(value)
        else:
            yield name, _ascii(value)


def _ascii(value: str) -> str:
    """Return a header value with other bytes percent-encoded; http.client reads bytes as Latin-1."""
    if value.isascii() and value.isprintable():
        return value
    return quote(" ".join(value.split("\r\n")).encode("latin-1", "replace"), safe=_PRINTABLE_ASCII)


def blank_records(path: str, ids: Container[str], offsets: Container[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the offsets of some responses and of their requests, with blank gzip members of the same length.

    They are those at `offsets`, and those of URLs with these ids that are no page: a page may be that of another link.
    """
    is_blank = False
    for archived in read_archive(path, lambda record: record):
        kind, headers = archived.content.rec_type, archived.content.rec_headers
        if kind == "response":
            is_link = id_of_url(headers.get_header("WARC-Target-URI")) in ids
            is_page = archived.content.http_headers.get_statuscode() == "200"
            is_blank = archived.offset in offsets or (is_link and not is_page)
        if is_blank and kind in ("response", "request"):
            kept = (f"{name}: {headers.get_header(name)}\r\n" for name in ("WARC-Record-ID", "WARC-Date"))
            yield archived.offset, _blank_member("".join(kept).encode(), archived.length)


def _blank_member(fields: bytes, size_bytes: int) -> bytes:
    """Return a gzip member of a size: a `metadata` record without a block, behind a comment of spaces."""
    member = _store(b"WARC/1.1\r\nWARC-Type: metadata\r\n%bContent-Length: 0\r\n\r\n\r\n\r\n" % fields)
    comment = b" " * (size_bytes - len(member) - 1) + b"\0"
    return _COMMENT_HEADER + comment + member[len(_GZIP_HEADER) :]
