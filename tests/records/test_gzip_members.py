"""The members of a gzip file that `find_members` finds, whatever the reads that they are in."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

from pipelines.records import archives


@pytest.mark.parametrize("read_bytes", [1, 7, 1 << 15])
def test_members_are_found_by_their_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int) -> None:
    monkeypatch.setattr(archives, "_SEARCHED_BYTES", read_bytes)
    noise = random.Random(1)
    contents = [b"a 1", b"", b"b 2" + noise.randbytes(9_000), b"a 3" + noise.randbytes(5_000), b"ba 4", b"a 5" * 9_000]
    members = [gzip.compress(content, mtime=0) for content in contents]
    path = tmp_path / "x.gz"
    path.write_bytes(b"".join(members))
    starts = [sum(map(len, members[:number])) for number in range(len(members))]
    found = [
        (match[1], start, length) for match, start, length in archives.find_members(str(path), re.compile(rb"a (\d)"))
    ]
    assert found == [(contents[number][2:3], starts[number], len(members[number])) for number in (0, 3, 5)]


def test_a_member_inside_another_one_is_not_found(tmp_path: Path) -> None:
    inner = gzip.compress(b"a 1", mtime=0)
    outer = gzip.compress(inner * 100, compresslevel=0, mtime=0)
    assert inner in outer
    (tmp_path / "x.gz").write_bytes(outer + gzip.compress(b"a 2", mtime=0))
    assert [match[0] for match, *_ in archives.find_members(str(tmp_path / "x.gz"), re.compile(rb"a \d"))] == [b"a 2"]


@pytest.mark.parametrize("rest", [b"no gzip", gzip.compress(b"a 2")[:-9], b"\x1f\x8b\x08\x00" + b"\xff" * 99])
def test_a_damaged_file_has_the_members_before_the_damage(tmp_path: Path, rest: bytes) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"a 1") + rest)
    assert [match[0] for match, *_ in archives.find_members(str(tmp_path / "x.gz"), re.compile(rb"a \d"))] == [b"a 1"]


def test_a_file_that_is_not_compressed_has_none(tmp_path: Path) -> None:
    (tmp_path / "x.warc").write_bytes(b"WARC/1.1\r\n" * 99)
    (tmp_path / "empty.gz").write_bytes(b"")
    for name in ("x.warc", "empty.gz"):
        assert list(archives.find_members(str(tmp_path / name), re.compile(rb""))) == []
