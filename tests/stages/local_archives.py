"""Archives on loopback for the tests of fetch: files of Common Crawl, and the Wayback Machine."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import http.server
import json
import re
import threading
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import surt


@dataclasses.dataclass(frozen=True)
class Archived:
    """A capture: the URL, the day as YYYY-MM-DD, and the response."""

    url: str
    day: str
    body: bytes = b"<html><title>A page</title><p>archived text</p></html>"
    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"Content-Type": "text/html"})

    @property
    def at(self) -> dt.datetime:
        return dt.datetime.fromisoformat(f"{self.day}T12:00:00+00:00")

    @property
    def stamp(self) -> str:
        return self.at.strftime("%Y%m%d%H%M%S")


def write_crawl(folder: Path, captures: Sequence[Archived], files: int = 2, row_group: int = 4) -> None:
    """Write `warc/N.warc.gz` and `index/part-N.parquet` (sorted by key)."""
    for name in ("warc", "index"):
        (folder / name).mkdir(parents=True)
    rows = []
    for number in range(files):
        data = b""
        for capture in captures[number::files]:
            record = archived_record(capture)
            place = {"warc_filename": f"warc/{number}.warc.gz", "warc_record_offset": len(data)}
            rows.append(_index_row(capture) | place | {"warc_record_length": len(record)})
            data += record
        (folder / "warc" / f"{number}.warc.gz").write_bytes(data)
    rows.sort(key=lambda row: (row["url_surtkey"], row["fetch_time"]))
    half = -(-len(rows) // files)
    for number in range(files):
        part = rows[number * half : (number + 1) * half]
        if part:
            pq.write_table(
                pa.Table.from_pylist(part), folder / "index" / f"part-{number}.parquet", row_group_size=row_group
            )


def archived_record(capture: Archived) -> bytes:
    """Return the WARC record of a capture as a gzip member."""
    http = "".join(f"{name}: {value}\r\n" for name, value in capture.headers.items())
    block = f"HTTP/1.1 {capture.status} OK\r\n{http}\r\n".encode() + capture.body
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {capture.url}\r\n"
        f"WARC-Date: {capture.at:%Y-%m-%dT%H:%M:%SZ}\r\nWARC-Record-ID: <urn:uuid:{uuid.uuid4()}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + block + b"\r\n\r\n")


def _index_row(capture: Archived) -> dict[str, Any]:
    return {
        "url_surtkey": surt.surt(capture.url),
        "url": capture.url,
        "fetch_time": capture.at.replace(tzinfo=None),
        "fetch_status": capture.status,
        "content_mime_detected": capture.headers.get("Content-Type", "text/html"),
    }


@dataclasses.dataclass
class LocalWayback:
    """The captures of a Wayback Machine, what it was asked, and `refusals` sent first, as (status, headers)."""

    captures: Sequence[Archived]
    refusals: list[tuple[int, dict[str, str]]] = dataclasses.field(default_factory=list)
    requests: list[str] = dataclasses.field(default_factory=list)
    url: str = ""

    def answer(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of the answer to a request."""
        self.requests.append(path)
        if self.refusals:
            status, headers = self.refusals.pop(0)
            return status, headers, b"slow down"
        parts = urllib.parse.urlsplit(path)
        if parts.path == "/cdx/search/cdx":
            query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
            rows = [capture for capture in self.captures if surt.surt(capture.url) == surt.surt(query["url"])]
            rows = [row for row in rows if query.get("from", "0") <= row.stamp <= query.get("to", "9")]
            closest = dt.datetime.strptime(query["closest"], "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)
            rows.sort(key=lambda row: abs(row.at - closest))
            table = [["timestamp", "original"], *([row.stamp, row.url] for row in rows[: int(query["limit"])])]
            return 200, {"Content-Type": "application/json"}, json.dumps(table if rows else []).encode()
        match = re.fullmatch(r"/web/(\d{14})id_/(.*)", path)
        assert match is not None, path
        near = [row for row in self.captures if surt.surt(row.url) == surt.surt(match[2])]
        if not near:
            return 404, {}, b""
        asked = dt.datetime.strptime(match[1], "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)
        capture = min(near, key=lambda row: abs(row.at - asked))
        if capture.stamp != match[1]:
            return 302, {"Location": f"{self.url}/web/{capture.stamp}id_/{capture.url}"}, b""
        headers = {f"x-archive-orig-{name.lower()}": value for name, value in capture.headers.items()}
        if location := capture.headers.get("Location"):
            headers["Location"] = f"{self.url}/web/{capture.stamp}id_/{location}"
        kind = capture.headers.get("Content-Type", "text/html")
        return capture.status, {**headers, "Content-Type": kind}, capture.body


@contextmanager
def served(answer: Any) -> Iterator[str]:
    """Yield the address of a server that answers by a function from the path to status, headers and body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = answer(self.path, self.headers) if answer is not None else (404, {}, b"")
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def wayback(
    captures: Sequence[Archived], refusals: Sequence[tuple[int, dict[str, str]]] = ()
) -> Iterator[LocalWayback]:
    """Yield a Wayback Machine with some captures."""
    machine = LocalWayback(captures, list(refusals))
    with served(lambda path, _: machine.answer(path)) as machine.url:
        yield machine


def serve_files(folder: Path) -> Any:
    """Yield the address of a server of files that understands ranges, as `served` does."""

    def answer(path: str, headers: Any) -> tuple[int, Mapping[str, str], bytes]:
        file = folder / path.lstrip("/")
        if not file.is_file():
            return 404, {}, b""
        data = file.read_bytes()
        dates = {"Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT", "Accept-Ranges": "bytes"}
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range", ""))
        if match is None:
            return 200, dates, data
        start = int(match[1]) if match[1] else max(0, len(data) - int(match[2]))
        end = min(int(match[2]) + 1, len(data)) if match[1] and match[2] else len(data)
        if start >= len(data):
            return 416, {"Content-Range": f"bytes */{len(data)}"}, b""
        return 206, dates | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]

    return served(answer)


def crawl_options(folder: Path, index: str = "index", **options: Any) -> dict[str, Any]:
    """Return the options of a fetch that asks the crawl in a folder."""
    return {
        "archive": ("commoncrawl",),
        "cc_index": (str(folder / index),),
        "cc_records": str(folder),
        **options,
    }


def machine_options(machine: Any, **options: Any) -> dict[str, Any]:
    """Return the options of a fetch that asks a Wayback Machine."""
    return {"archive": ("wayback",), "wayback_url": machine.url, "wayback_rate": 6000.0, **options}
