"""Blank WARC records: of the same length, and readable."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import random
from pathlib import Path

import pytest
from warcio.archiveiterator import ArchiveIterator

from pipelines.algorithms.web.urls import id_of_url
from pipelines.stages.fetch import warc
from pipelines.stages.fetch.exchange import Response


def _response(url: str, body: bytes, status: int = 200) -> bytes:
    response = Response(
        http_version="HTTP/1.1", status=status, reason="OK", headers=(("Content-Type", "text/html"),), body=body
    )
    return warc.response_record(url, "2026-01-01T00:00:00.000000Z", response, {})


@pytest.mark.parametrize("size", [0, 1, 1000, 65_000, 65_400, 70_000, 200_000])
def test_a_blank_member_has_the_length_of_the_record(tmp_path: Path, size: int) -> None:
    body = random.Random(size).randbytes(size)
    info = warc.warcinfo_record("x.warc.gz", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), {"software": "test"})
    parts = [
        info,
        _response("http://a.com/", body),
        _response("http://b.com/", b"kept"),
        _response("http://a.com/", body, 404),
    ]
    path = tmp_path / "x.warc.gz"
    path.write_bytes(b"".join(parts))
    offsets = [sum(map(len, parts[:number])) for number in range(4)]
    patches = dict(warc.blank_records(str(path), {id_of_url("http://a.com/")}, {offsets[1]}))
    assert {offset: len(data) for offset, data in patches.items()} == {
        offsets[1]: len(parts[1]), offsets[3]: len(parts[3]),
    }  # fmt: skip
    data = b"".join(patches.get(offset, part) for offset, part in zip(offsets, parts, strict=True))
    records = list(ArchiveIterator(io.BytesIO(data)))
    assert [record.rec_type for record in ArchiveIterator(io.BytesIO(data))] == [
        "warcinfo",
        "metadata",
        "response",
        "metadata",
    ]
    assert len(records) == 4
    assert not size or body[:50] not in gzip.decompress(data)


@pytest.mark.parametrize("size", [*range(400, 420), *range(65_540, 65_600, 7), *range(131_090, 131_130, 3)])
def test_every_length_is_reached(size: int) -> None:
    member = warc._blank_member(b"WARC-Record-ID: <urn:x>\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n", size)
    assert len(member) == size
    [record] = ArchiveIterator(io.BytesIO(member))
    assert record.rec_type == "metadata"
    assert not record.content_stream().read().strip()
