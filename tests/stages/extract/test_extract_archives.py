"""Hostile and damaged WARC files: headers of gigabytes in a few kilobytes of gzip, wrong lengths, incomplete copies."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from compressed_files import write_compressed

from pipelines.errors import InputError
from pipelines.records import archives
from pipelines.records.inputs import InputFile
from pipelines.stages.extract.pages import read_pages

pytestmark = pytest.mark.usefixtures("warm_processes")

_MIB = 1 << 20
_BOMB_MIB = 70
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, repeated: bytes
) -> None:
    # An eighth, since tracemalloc takes long for so many short lines.
    monkeypatch.setattr(archives, "MAX_HEADER_BYTES", _MIB // 8)
    path = _write(tmp_path, [start, *[repeated] * _BOMB_MIB])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"crawl.warc.gz: is damaged .*headers .* more than 131,072"):
            list(read_pages(InputFile(str(path), 0)))
        assert tracemalloc.get_traced_memory()[1] < 8 * _MIB
    finally:
        tracemalloc.stop()


def test_headers_are_bounded_for_each_record(tmp_path: Path) -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Long: " + b"x" * (_MIB // 2) + b"\r\n\r\n<p>text"
    record = _RECORD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"
    path = tmp_path / "crawl.warc"
    path.write_bytes(record * 5)
    assert len(list(read_pages(InputFile(str(path), 0)))) == 5


def _response(number: int, *, length_error: int = 0, size: int = 99) -> bytes:
    text = random.Random(number).randbytes(size).hex()
    body = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>text {text}"
    length = len(body) + length_error
    return (
        _RECORD.replace(b"a.com/", b"a.com/a %d" % number) + f"Content-Length: {length}\r\n\r\n{body}\r\n\r\n".encode()
    )


@pytest.mark.parametrize("suffix", [".zst", ".bz2", ".xz"])
def test_other_compressions_than_gzip(tmp_path: Path, suffix: str) -> None:
    records = [_response(number, size=9000) for number in range(3)]
    path = write_compressed(tmp_path, f"crawl.warc{suffix}", b"".join(records))
    pages = list(read_pages(InputFile(str(path), 0)))
    assert [page.warc_offset for page in pages] == [0, len(records[0]), len(records[0] + records[1])]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=rf"crawl\.warc{suffix}: is (damaged|truncated)"):
        list(read_pages(InputFile(str(path), 0)))


def test_damage_is_a_counted_drop_or_an_error_and_never_a_warning_of_warcio(tmp_path: Path) -> None:
    one_is_longer = [_response(number, length_error=-9 * (number == 1)) for number in range(3)]
    cases: list[tuple[bytes, list[str] | str]] = [
        (b"".join(one_is_longer), ["", "damaged_record", ""]),
        (b"".join(map(gzip.compress, one_is_longer)), ["", "damaged_record", ""]),
        (_response(0) + _response(1, length_error=20) + _response(2), "is damaged after byte"),
        (gzip.compress(_response(0)) + gzip.compress(_response(1))[:-30], "the file ends within a compressed record"),
        (
            gzip.compress(_response(0, size=99_000))[:-9] + b"x" * 9,
            "is damaged after byte 0 (Error -6 Incorrect checksum found)",
        ),
        (b"no record, but more than five words\n", "a record has no URL"),
    ]
    paths = []
    for number, (records, _) in enumerate(cases):
        paths.append(tmp_path / f"{number}.warc{'' if records.isascii() else '.gz'}")
        paths[-1].write_bytes(records)
    # In a process of its own: the handlers of pytest would hide a warning by `logging`.
    code = (
        "import json, sys\n"
        "from pipelines.records.inputs import InputFile\n"
        "from pipelines.stages.extract.pages import read_pages\n"
        "for path in sys.argv[1:]:\n"
        "    try: result = [getattr(page.content, 'problem', '') for page in read_pages(InputFile(path, 0))]\n"
        "    except Exception as error: result = str(error)\n"
        "    print(json.dumps(result))"
    )
    result = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    for (_, expected), line in zip(cases, result.stdout.splitlines(), strict=True):
        if isinstance(expected, str):
            assert expected in json.loads(line)
            assert "check that the copy is complete" in json.loads(line)
        else:
            assert json.loads(line) == expected
