"""WARC files whose headers are gigabytes, in a few kilobytes of gzip."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from pipelines.core.errors import InputError
from pipelines.core.inputs import InputFile
from pipelines.stages.extract.pages import read_pages

_MIB = 1 << 20
_BOMB_MIB = 100
_RECORD = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.com/\r\n"
_LENGTH = b"Content-Length: 1000000000\r\n"


def _write(folder: Path, parts: list[bytes]) -> Path:
    path = folder / "crawl.warc.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for part in parts:
            stream.write(part)
    return path


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (_RECORD + b"X-Long: ", b"x" * _MIB),
        (_RECORD, b"a: b\r\n" * (_MIB // 6)),
        (_RECORD + _LENGTH + b"\r\nHTTP/1.1 200 OK\r\nX-Long: ", b"x" * _MIB),
        (_RECORD + _LENGTH + b"\r\nHTTP/1.1 200 OK\r\n", b"a: b\r\n" * (_MIB // 6)),
        (_RECORD + b"Content-Length: 0\r\n\r\n", b"\r\n" * (_MIB // 2)),
        (b"", b"x" * _MIB),
    ],
)
def test_headers_without_end_are_refused_before_they_fill_the_memory(
    tmp_path: Path, start: bytes, repeated: bytes
) -> None:
    path = _write(tmp_path, [start, *[repeated] * _BOMB_MIB])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"crawl.warc.gz: is damaged .*headers .* more than 1,048,576"):
            list(read_pages(InputFile(str(path), 0)))
        assert tracemalloc.get_traced_memory()[1] < 60 * _MIB
    finally:
        tracemalloc.stop()


def test_headers_are_bounded_for_each_record(tmp_path: Path) -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Long: " + b"x" * (_MIB // 2) + b"\r\n\r\n<p>text"
    record = _RECORD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"
    path = tmp_path / "crawl.warc"
    path.write_bytes(record * 5)
    assert len(list(read_pages(InputFile(str(path), 0)))) == 5
