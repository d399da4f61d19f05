"""HTTP exchanges as WARC 1.1 records, one gzip member each, so that a record can be read at its offset.

The body is stored as received: in its content encoding, but without chunked framing. Headers that no longer match the
body are renamed to `X-Archive-Orig-...`.
"""

from __future__ import annotations

import datetime as dt
import http.client
import io
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from pipelines.stages.fetch.exchange import Exchange, Response

_VERSION = "WARC/1.1"
_DATE = "%Y-%m-%dT%H:%M:%S.%fZ"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE_ASCII = "".join(map(chr, range(0x20, 0x7F)))


def exchange_records(exchange: Exchange) -> bytes:
    """Return the response record of an exchange, followed by its request record, as gzip members."""
    response = exchange.response
    assert response is not None, "an exchange without a response has no record"
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=True, warc_version=_VERSION)
    date = exchange.started_at.strftime(_DATE)

    def make_record(kind: str, head: StatusAndHeaders, body: bytes, headers: dict[str, str | None]) -> Any:
        headers = {"WARC-Record-ID": _record_id(kind, exchange.url, date), "WARC-Date": date, **headers}
        return writer.create_warc_record(
            exchange.url,
            kind,
            payload=io.BytesIO(body),
            length=len(body),
            warc_headers_dict={name: value for name, value in headers.items() if value is not None},
            http_headers=head,
        )

    headers = {"WARC-IP-Address": exchange.peer, "WARC-Truncated": response.truncated}
    reason = _ascii(response.reason) or http.client.responses.get(response.status, "Unknown")
    status_line, stored = f"{response.status} {reason}", list(_stored_headers(response))
    head = StatusAndHeaders(status_line, stored, protocol=response.http_version)
    response_record = make_record("response", head, response.body or b"", headers)
    request_record = make_record("request", _request_line_and_headers(exchange), b"", {})
    writer.write_request_response_pair(request_record, response_record)
    return stream.getvalue()


def warcinfo_record(name: str, created_at: dt.datetime, fields: Mapping[str, str]) -> bytes:
    """Return the first record of a WARC file: the software that wrote it, and its settings."""
    stream = io.BytesIO()
    writer = WARCWriter(stream, gzip=True, warc_version=_VERSION)
    record = writer.create_warcinfo_record(name, dict(fields))
    date = created_at.strftime(_DATE)
    record.rec_headers.replace_header("WARC-Date", date)
    record.rec_headers.replace_header("WARC-Record-ID", _record_id("warcinfo", name, date))
    writer.write_record(record)
    return stream.getvalue()


def _record_id(kind: str, url: str, date: str) -> str:
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{kind} {date} {url}')}>"


def _stored_headers(response: Response) -> Iterable[tuple[str, str]]:
    for name, value in response.headers:
        if not _TOKEN.fullmatch(name):
            continue  # no HTTP reader accepts such a line as a header
        lower = name.lower()
        if lower == "transfer-encoding":
            yield f"X-Archive-Orig-{name}", _ascii(value)
        elif lower == "content-encoding" and response.coding is not None and value != response.coding:
            yield name, response.coding
            yield f"X-Archive-Orig-{name}", _ascii(value)
        else:
            yield name, _ascii(value)


def _request_line_and_headers(exchange: Exchange) -> StatusAndHeaders:
    parts = urlsplit(exchange.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [("Host", parts.netloc), *((name, _ascii(value)) for name, value in exchange.request_headers)]
    return StatusAndHeaders(f"GET {target} HTTP/1.1", headers, is_http_request=True)


def _ascii(value: str) -> str:
    """Return a header value with other bytes percent-encoded; http.client reads bytes as Latin-1."""
    return quote(" ".join(value.split("\r\n")).encode("latin-1", "replace"), safe=_PRINTABLE_ASCII)
