"""Decompression: every kind gives the same bytes, and no damaged file is read as a short one."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import progress
from pipelines.errors import DamagedFileError, InputError
from pipelines.storage.compression import find_bzip2_stream, open_decompressed, read_bzip2_streams, strip_compression

_TEXT = b"".join(b"line %d of a dump\n" % number for number in range(50_000))


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


_KINDS: dict[str, Callable[[bytes], bytes]] = {
    ".zst": _zstd,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".gz": gzip.compress,
    "": bytes,
}


def _read(path: Path) -> bytes:
    with open_decompressed(str(path)) as stream:
        return stream.read()


@pytest.mark.parametrize("suffix", _KINDS)
def test_every_compression_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(_KINDS[suffix](_TEXT))
    assert _read(path) == _TEXT
    assert strip_compression(str(path)) == str(tmp_path / "rs").lower()  # a type of file, whatever the case
    assert strip_compression(str(path).upper()) == strip_compression(str(path))


@pytest.mark.parametrize("suffix", [".zst", ".xz", ".bz2", ".gz"])
def test_several_streams_in_one_file_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(_KINDS[suffix](_TEXT) + _KINDS[suffix](b"second\n"))
    assert _read(path) == _TEXT + b"second\n"


@pytest.mark.parametrize("suffix", [".zst", ".xz", ".bz2", ".gz"])
def test_a_truncated_file_is_named_with_the_offset(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    whole = _KINDS[suffix](_TEXT)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError, match=rf"RS{suffix}: is truncated or corrupt near compressed byte \d+"):
        _read(path)


@pytest.mark.parametrize("suffix", [".zst", ".xz", ".bz2", ".gz"])
def test_a_file_of_another_kind_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(b"this is no compressed file at all")
    with pytest.raises(InputError, match="is truncated or corrupt"):
        _read(path)


def test_the_long_window_of_the_dumps_is_accepted(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    path = tmp_path / "RS.zst"
    path.write_bytes(compressor.compressobj().compress(b"") + b"")
    with path.open("wb") as stream, compressor.stream_writer(stream, closefd=False) as writer:
        writer.write(_TEXT)
    assert zstandard.get_frame_parameters(path.read_bytes()).window_size == 2**31
    assert _read(path) == _TEXT


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_a_zstd_file_cut_anywhere_is_never_read_as_a_whole_one(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    whole = _zstd(data)
    path = tmp_path_factory.mktemp("cut") / "RS.zst"
    path.write_bytes(whole[: min(cut, len(whole))])
    if 0 < cut < len(whole):
        with pytest.raises(InputError, match="truncated or corrupt"):
            _read(path)
    else:
        assert _read(path) in (b"", data)


@pytest.mark.parametrize("suffix", _KINDS)
def test_the_compressed_bytes_are_reported_as_progress(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(_KINDS[suffix](_TEXT))
    seen: list[int] = []
    progress.set_sink(seen.append)
    try:
        with open_decompressed(str(path), report_bytes=True) as stream:
            assert sum(1 for _ in stream) == 50_000
    finally:
        progress.set_sink(None)
    assert sum(seen) == path.stat().st_size


def _read_until_damage(path: Path, size: int = 1000) -> tuple[bytes, DamagedFileError]:
    """Return all bytes that were handed out, read by so many, and the error after them."""
    found = bytearray()

    def read(stream: BinaryIO) -> None:
        while got := stream.read1(size):  # type: ignore[attr-defined]
            found.extend(got)

    with pytest.raises(DamagedFileError) as raised, open_decompressed(str(path)) as stream:
        read(stream)
    return bytes(found), raised.value


def _blocks(frame: bytes) -> list[int]:
    """Return where the blocks of a zstd frame begin, and where the last ends."""
    ends = [zstandard.frame_header_size(frame)]
    is_last = 0
    while not is_last:
        header = int.from_bytes(frame[ends[-1] : ends[-1] + 3], "little")
        is_last = header & 1
        ends.append(ends[-1] + 3 + (1 if header >> 1 & 3 == 1 else header >> 3))
    return ends


_SKIPPABLE = 0x184D2A50
_NOISE = random.Random(3)
_NOISY = _NOISE.randbytes(30_000)
_LITTLE_REPEATED = b"".join(b"%x\n" % _NOISE.getrandbits(800) for _ in range(5000))


def test_frames_before_garbage_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "RS.zst"
    for frames in (1, 3):
        path.write_bytes(_zstd(b"a line\n" * 5) * frames + b"no zstd frame begins here")
        assert _read_until_damage(path)[0] == b"a line\n" * 5 * frames
    path.write_bytes(_zstd(_TEXT) + b"(")
    found, error = _read_until_damage(path)
    assert found == _TEXT
    assert error.reason == "the last zstd frame is incomplete"


def test_all_blocks_before_a_damaged_one_are_returned(tmp_path: Path) -> None:
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(_LITTLE_REPEATED)
    starts = _blocks(frame)
    assert len(starts) == 9
    path = tmp_path / "RS.zst"
    for number, start in enumerate(starts[:-1]):
        # A block of the kind that is reserved.
        path.write_bytes(frame[:start] + bytes([frame[start] | 6]) + frame[start + 1 :])
        assert _read_until_damage(path)[0] == _LITTLE_REPEATED[: number << 17]
    # All of a frame comes before it is known that its checksum is wrong, or is not there.
    for end in (frame[-4:-1] + b"\x00", frame[-4:-1], b""):
        path.write_bytes(frame[: starts[-1]] + end)
        assert _read_until_damage(path)[0] == _LITTLE_REPEATED


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 256)), max_size=4),
    st.booleans(),
    st.integers(1, 5),
)
def test_frames_of_every_kind_are_read_whole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], has_checksum: bool, flushes: int
) -> None:
    # From one repeated byte, over what compresses, to noise.
    parts = [bytes(byte % kinds for byte in _NOISY[: size // 10]) * (size % 10) for size, kinds in sizes]
    packed = b""
    for number, part in enumerate(parts):
        # One frame is skipped before each, which may look like anything.
        packed += (_SKIPPABLE + number).to_bytes(4, "little") + len(part).to_bytes(4, "little") + part
        compressor = zstandard.ZstdCompressor(write_checksum=has_checksum).compressobj()
        step = len(part) // flushes + 1
        for start in range(0, len(part), step):
            packed += compressor.compress(part[start : start + step])
            packed += compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        packed += compressor.flush()
    path = tmp_path_factory.mktemp("frames") / "RS.zst"
    path.write_bytes(packed)
    assert _read(path) == b"".join(parts)


def test_skipped_frames_that_stop_short_are_damage(tmp_path: Path) -> None:
    skipped = _SKIPPABLE.to_bytes(4, "little") + (700_000).to_bytes(4, "little") + bytes(700_000)
    path = tmp_path / "RS.zst"
    path.write_bytes(skipped + _zstd(_TEXT) + skipped)
    assert _read(path) == _TEXT
    for cut in (1, 4, 5, 7, 8, 600_000):
        path.write_bytes(_zstd(_TEXT) + skipped[:cut])
        assert _read_until_damage(path)[0] == _TEXT


def test_highly_compressed_data_is_decoded_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "RS.zst"
    with path.open("wb") as stream, zstandard.ZstdCompressor(level=1).stream_writer(stream) as writer:
        for _ in range(256):
            writer.write(b"\n" * (1 << 20))
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    try:
        with open_decompressed(str(path)) as lines:
            for _ in range(64):
                assert lines.read(1 << 16) == b"\n" * (1 << 16)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_parts_of_a_bzip2_file_give_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.bz2"
    pieces = [_TEXT[first : first + 100_000] for first in range(0, len(_TEXT), 100_000)]
    streams = [bz2.compress(piece) for piece in pieces]
    path.write_bytes(b"".join(streams))
    begins = [sum(map(len, streams[:number])) for number in range(len(streams))]
    size = path.stat().st_size
    for begin in begins:
        assert find_bzip2_stream(str(path), begin, size) == begin
    assert find_bzip2_stream(str(path), begins[0] + 1, begins[1]) is None
    assert find_bzip2_stream(str(path), begins[0] + 1, size) == begins[1]
    parts = [(0, begins[3]), (begins[3], begins[4]), (begins[4], size)]
    assert b"".join(chunk for part in parts for chunk in read_bzip2_streams(str(path), *part)) == _TEXT
    # One that begins before the end of the part belongs to it as a whole.
    assert b"".join(read_bzip2_streams(str(path), 0, begins[1] + 1)) == b"".join(pieces[:2])


def test_a_large_stream_of_bzip2_comes_in_small_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.bz2"
    path.write_bytes(bz2.compress(bytes(50_000_000)))
    sizes = [len(chunk) for chunk in read_bzip2_streams(str(path), 0, path.stat().st_size)]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize("cut", [1, 30])
def test_a_truncated_stream_of_bzip2_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.bz2"
    path.write_bytes((bz2.compress(_TEXT) + bz2.compress(_TEXT))[:-cut])
    with pytest.raises(DamagedFileError, match=r"a\.bz2: is truncated or corrupt near compressed byte"):
        list(read_bzip2_streams(str(path), 0, path.stat().st_size))
