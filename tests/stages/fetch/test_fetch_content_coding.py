"""Content encodings, undone within bounds."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.stages.fetch.exchange import BodyDecoder, BodyError, content_coding, decode_prefix, looks_binary


def _raw_deflate(data: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


_ENCODERS = {"gzip": gzip.compress, "deflate": zlib.compress, None: bytes}


@given(st.binary(max_size=5000), st.sampled_from([*_ENCODERS, "raw"]), st.integers(2, 700))
def test_chunks_decode_to_the_whole(data: bytes, coding: str | None, piece_bytes: int) -> None:
    body = _raw_deflate(data) if coding == "raw" else _ENCODERS[coding](data)
    decoder = BodyDecoder("deflate" if coding == "raw" else coding)
    pieces = [decoder.feed(body[start : start + piece_bytes], 10_000) for start in range(0, len(body), piece_bytes)]
    decoder.finish()
    assert b"".join(pieces) == data
    assert decoder.decoded_bytes == len(data)


def test_a_bomb_is_not_decoded_beyond_the_limit() -> None:
    body = gzip.compress(bytes(50_000_000))
    decoder = BodyDecoder("gzip")
    assert len(decoder.feed(body, 1001)) == 1001
    assert len(decode_prefix(body, "gzip", 100)) == 100


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_data_in_another_encoding_is_refused(coding: str) -> None:
    with pytest.raises(BodyError) as caught:
        BodyDecoder(coding).feed(b"<html>not compressed at all</html>", 1000)
    assert caught.value.failure.reason == "bad_encoding"


def test_truncated_data_is_refused() -> None:
    decoder = BodyDecoder("gzip")
    decoder.feed(gzip.compress(b"text" * 100)[:-9], 10_000)
    with pytest.raises(BodyError) as caught:
        decoder.finish()
    assert caught.value.failure.reason == "incomplete"


@pytest.mark.parametrize(
    ("header", "coding"),
    [(None, None), ("", None), ("gzip", "gzip"), (" GZIP ", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"),
     ("identity", None), ("utf-8", None), ("identity, gzip", "gzip")],
)  # fmt: skip
def test_headers(header: str | None, coding: str | None) -> None:
    assert content_coding(header) == coding


@pytest.mark.parametrize("header", ["br", "zstd", "gzip, br", "gzip, gzip", "compress"])
def test_unsupported_encodings(header: str) -> None:
    with pytest.raises(BodyError) as caught:
        content_coding(header)
    assert caught.value.failure.reason == "unsupported_encoding"


@pytest.mark.parametrize(
    ("body", "binary"),
    [
        (b"", False),
        (b"plain text\r\n\twith tabs\x0c and \x1b$B escapes", False),
        ("кириллица".encode("cp1251"), False),
        ("\ufefftext".encode("utf-16"), False),
        (b"\x89PNG\r\n\x1a\n\x00\x00", True),
        (b"GIF89a\x01\x00", True),
        (b"text " * 300 + b"\x00", False),  # beyond the first KiB
    ],
)
def test_binary_data(body: bytes, binary: bool) -> None:
    assert looks_binary(body, None) is binary
    assert looks_binary(gzip.compress(body), "gzip") is binary
