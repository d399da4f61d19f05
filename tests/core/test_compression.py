"""Decompression: every kind gives the same bytes, and no damaged file is read as a short one."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core import progress
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError

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
def test_every_kind_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"RS{suffix}"
    path.write_bytes(_KINDS[suffix](_TEXT))
    assert _read(path) == _TEXT
    assert strip_compression(str(path)) == str(tmp_path / "RS")


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
