"""Dumps as blocks of whole lines, wherever a block ends, and what is read of a file before its damage."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import DamagedFileError
from pipelines.stages.scrape.submission import Rejects, Submission, parse_line, read_submissions
from pipelines.storage.bounded import line_blocks, stream_lines
from pipelines.storage.compression import open_decompressed


class _Dribble(io.BytesIO):
    """A stream that hands out as much at a time as a list of sizes says, in turn."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self._sizes = sizes
        self._turn = 0

    def readinto(self, buffer: Any) -> int:
        size = self._sizes[self._turn % len(self._sizes)]
        self._turn += 1
        return super().readinto(memoryview(buffer)[:size])


def _dribble(data: bytes, sizes: list[int]) -> Any:
    return io.BufferedReader(_Dribble(data, sizes), 16)  # type: ignore[arg-type]


def _lines(stream: Any, block_bytes: int, max_line_bytes: int = 1 << 20) -> list[bytes]:
    lines = []
    for block in line_blocks(stream, max_line_bytes, block_bytes):
        lines += block.removesuffix(b"\n").split(b"\n")
    return lines


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if not lines[-1] else lines


_PIECES = st.sampled_from(["\n", "\r\n", "\n\n", "a", "word", "é", "日本", "😀", "\x00", " "]).map(str.encode)
_DATA = st.lists(_PIECES | st.binary(max_size=90), max_size=30).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(_DATA, st.integers(1, 80), st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_blocks_contain_all_lines_wherever_they_end(data: bytes, block_bytes: int, sizes: list[int]) -> None:
    assert _lines(io.BytesIO(data), block_bytes) == _split(data)
    assert _lines(_dribble(data, sizes), block_bytes) == _split(data)


def test_every_block_size_with_multibyte_characters() -> None:
    data = "é日本😀\r\n\n😀\nab\r\n \n日".encode() * 3
    for block_bytes in range(1, len(data) + 3):
        assert _lines(io.BytesIO(data), block_bytes) == _split(data)
        assert _lines(io.BytesIO(data + b"\n"), block_bytes) == _split(data + b"\n")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=12), *(st.integers(1, most) for most in (64, 200, 90)), st.booleans())
def test_a_line_beyond_the_maximum_is_cut(
    sizes: list[int], block_bytes: int, max_line_bytes: int, at_a_time: int, ends: bool
) -> None:
    lines = [b"%c" % (97 + number) * size for number, size in enumerate(sizes)]
    data = b"\n".join(lines) + b"\n" * ends
    lines_read = _lines(_dribble(data, [at_a_time]), block_bytes, max_line_bytes)
    wanted = _split(data)
    assert len(lines_read) == len(wanted)
    for got, line in zip(lines_read, wanted, strict=True):
        assert got == line or (line.startswith(got) and len(line) > len(got) >= max_line_bytes)
        # No more is kept of an endless line than about the maximum, so that memory is bounded.
        assert len(got) <= max_line_bytes + block_bytes


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n\n", b"a", b"a\n", b"\r\n", b"\na"])
def test_short_streams(data: bytes) -> None:
    for block_bytes in (1, 2, 3, 100):
        assert _lines(io.BytesIO(data), block_bytes) == _split(data)


def _record(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"{number:x}",
        "created_utc": 1388534400 + number,
        "url": f"http://example.com/{number}",
        "score": number,
        "subreddit": "Bücher",
        "title": f"Titel {number} — 日本 😀",
        "is_self": False,
        **fields,
    }


def _read(
    stream: Any, block_bytes: int = 1 << 20, max_line_bytes: int = 1 << 20
) -> tuple[list[tuple[int, Submission]], list[tuple[int, str]]]:
    """Return the submissions and the reasons of rejected lines with their line numbers."""
    rows: list[dict[str, Any]] = []
    rejects = Rejects("x", rows.append)
    blocks = read_submissions(stream, rejects, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    submissions = [pair for numbers, block in blocks for pair in zip(numbers, block, strict=True)]
    return submissions, [(row["line"], row["reason"]) for row in rows]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_numbers(end: str) -> None:
    bad = {7: "{broken", 8: "[]", 30: '{"id": "x"}', 31: "oops", 59: '{"created_utc": 5}'}
    texts = [bad.get(n, json.dumps(_record(n), ensure_ascii=n % 2 == 0)) for n in range(60)]
    for n in (0, 3, 4, 31, 58):
        texts[n] += end + (" \t" if n == 3 else "")
    data = end.join(texts).encode()
    lines = enumerate(stream_lines(io.BytesIO(data)), 1)
    numbered = [(number, line) for number, line in lines if line.strip()]  # type: ignore[arg-type]
    for block_bytes in (1, 17, 333, 1 << 20):
        good, rejects = _read(io.BytesIO(data), block_bytes)
        assert len(good) + len(rejects) == len(numbered) == 60
        assert [number for number, _ in rejects] == [
            number for number, line in numbered if line.decode().rstrip("\r\n") in bad.values()
        ]
        assert [reason for _, reason in rejects] == [
            "not_json",
            "not_an_object",
            "no_created_utc",
            "not_json",
            "no_id",
        ]
        known = {number for number, _ in rejects}
        assert good == [(number, parse_line(line)) for number, line in numbered if number not in known]


def test_an_endless_line_is_one_bad_line() -> None:
    lines = [json.dumps(_record(1)), json.dumps(_record(2, title="x" * 9000)), json.dumps(_record(3))]
    for endless in ('{"id": "' + "x" * 50_000, "{" * 50_000, lines[1]):
        data = "\n".join([lines[0], endless, lines[2]]).encode()
        good, rejects = _read(io.BytesIO(data), block_bytes=100, max_line_bytes=3000)
        assert [(number, submission.id) for number, submission in good] == [(1, "1"), (3, "3")]
        assert rejects == [(2, "not_json")]


_NOISE = random.Random(5)
# Little that repeats, so that damage anywhere in the file is damage to some of it.
_DUMP = b"".join(json.dumps(_record(n, pad=f"{_NOISE.getrandbits(700):x}")).encode() + b"\n" for n in range(2500))


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(data)


_PACK: dict[str, Callable[[bytes], bytes]] = {
    ".zst": _zstd,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
}
_DECODER: dict[str, Callable[[], Any]] = {
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".gz": lambda: zlib.decompressobj(31),
}
_PACKED = {suffix: pack(_DUMP) for suffix, pack in _PACK.items()}


def _until_damage(path: Path) -> tuple[bytes, DamagedFileError | None]:
    """Return the lines of a file that were delivered, and the error after them."""
    found = b""
    try:
        with open_decompressed(str(path)) as stream:
            for block in line_blocks(stream, block_bytes=1 << 20):
                found += block
    except DamagedFileError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("suffix", _PACK)
def test_all_whole_lines_before_a_cut_are_delivered(tmp_path: Path, suffix: str) -> None:
    whole = _PACKED[suffix]
    path = tmp_path / f"RS{suffix}"
    cuts = [1, 5, 30, *range(1000, len(whole), len(whole) // 12), len(whole) - 9, len(whole) - 1]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        found, error = _until_damage(path)
        decoded = _DECODER[suffix]().decompress(whole[:cut])
        assert found == decoded[: decoded.rfind(b"\n") + 1]
        assert error is not None, f"a file cut at {cut} of {len(whole)} was taken for a whole one"
        assert error.offset_bytes == cut
        assert f"{path}: is truncated or corrupt near compressed byte {cut}" in str(error)
    assert len(found) > 0.8 * len(_DUMP)


@pytest.mark.parametrize("suffix", _PACK)
def test_flipped_bytes_are_never_read_as_data(tmp_path: Path, suffix: str) -> None:
    whole = _PACKED[suffix]
    path = tmp_path / f"RS{suffix}"
    delivered = []
    for at in range(20, len(whole) - 20, len(whole) // 12):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        found, error = _until_damage(path)
        assert error is not None, f"byte {at} of {len(whole)} was flipped"
        assert 0 < error.offset_bytes <= len(whole)
        # Wrong bytes may come before a checksum tells, yet only from the flipped block on (of zstd 128 KiB at most).
        same = next((n for n, pair in enumerate(zip(found, _DUMP, strict=False)) if pair[0] != pair[1]), len(found))
        assert same == len(found) or same > 0.8 * len(_DUMP) * at / len(whole) - (1 << 17)
        delivered.append(len(found))
    assert delivered[-1] > 0.5 * len(_DUMP)


@pytest.mark.parametrize("suffix", _PACK)
def test_a_file_of_several_streams_is_read_completely(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    # Streams may end in the middle of a line, and hold nothing.
    edges = [0, 1, 77, 200_000, 200_000, len(_DUMP) // 2, len(_DUMP)]
    path.write_bytes(b"".join(_PACK[suffix](_DUMP[a:b]) for a, b in itertools.pairwise(edges)))
    assert _until_damage(path) == (_DUMP, None)
    # The last one is cut: what the others hold, and its own lines up to there, are delivered.
    data = path.read_bytes()
    path.write_bytes(data[:-40_000])
    found, error = _until_damage(path)
    assert error is not None
    assert error.offset_bytes == len(data) - 40_000
    assert _DUMP.startswith(found)
    assert len(found) > len(_DUMP) // 2


@pytest.mark.parametrize("suffix", _PACK)
def test_data_before_late_damage_is_delivered(tmp_path: Path, suffix: str) -> None:
    # More than one block, so that the damage comes after some were delivered and while one is being filled.
    data = _DUMP * 11
    whole = _PACK[suffix](data)
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(whole[: len(whole) * 99 // 100])
    found, error = _until_damage(path)
    assert error is not None
    assert data.startswith(found)
    assert len(found) > 8 << 20
    assert len(found) > 0.95 * len(data)


@pytest.mark.parametrize("suffix", _PACK)
def test_a_disk_error_is_not_a_damaged_file(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(_PACKED[suffix])

    class _BadDisk(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 100_000:
                raise OSError(5, "Input/output error")
            return super().read(min(size or 0, 65536) if size and size > 0 else 65536)

        def readinto(self, buffer: Any) -> int:
            data = self.read(len(memoryview(buffer)))
            memoryview(buffer)[: len(data)] = data
            return len(data)

    monkeypatch.setattr("pipelines.storage.open_read", lambda _: _BadDisk(_PACKED[suffix]))
    with pytest.raises(OSError, match="Input/output error"):
        _until_damage(path)
