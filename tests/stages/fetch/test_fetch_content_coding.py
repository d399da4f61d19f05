"""Content encodings, undone within bounds."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.stages.extract.child import RawPage, extract_text
from pipelines.stages.extract.extractors import Extracted
from pipelines.stages.fetch.exchange import content_coding, decode_body, gzip_size, looks_binary
from pipelines.stages.fetch.outcomes import Failure


def _raw_deflate(data: bytes) -> bytes:
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


_ENCODERS = {"gzip": gzip.compress, "deflate": zlib.compress, None: bytes}


@given(st.binary(max_size=5000), st.sampled_from([*_ENCODERS, "raw"]))
def test_bodies_are_decoded(data: bytes, coding: str | None) -> None:
    body = _raw_deflate(data) if coding == "raw" else _ENCODERS[coding](data)
    assert decode_body(body, "deflate" if coding == "raw" else coding, 10_000) == data


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw"])
def test_a_bomb_is_not_decoded_beyond_the_limit(coding: str) -> None:
    body = _raw_deflate(bytes(50_000_000)) if coding == "raw" else _ENCODERS[coding](bytes(50_000_000))
    for limit in (1001, 100):
        assert decode_body(body, "deflate" if coding == "raw" else coding, limit) == bytes(limit)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_data_in_another_encoding_is_refused(coding: str) -> None:
    with pytest.raises(Failure) as caught:
        decode_body(b"<html>not compressed at all</html>", coding, 1000)
    assert caught.value.reason == "bad_encoding"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw"])
def test_truncated_data_is_refused_unless_a_part_is_wanted(coding: str) -> None:
    data = bytes(range(256)) * 9
    body = _raw_deflate(data) if coding == "raw" else _ENCODERS[coding](data)
    coding = "deflate" if coding == "raw" else coding
    with pytest.raises(Failure) as caught:
        decode_body(body[:-9], coding, 10_000)
    assert (caught.value.reason, caught.value.retryable) == ("incomplete", True)
    part = decode_body(body[:-9], coding, 10_000, is_whole=False)
    assert part == data[: len(part)]


def test_what_follows_a_gzip_member_is_ignored() -> None:
    assert decode_body(gzip.compress(b"text") + gzip.compress(b"more") + b"no gzip", "gzip", 10_000) == b"text"


_PAGE = gzip.compress("".join(f"<p>{number**5} words" for number in range(9000)).encode())


@given(st.binary(max_size=5000), st.integers(0, 9))
def test_a_gzip_body_ends_with_its_decoded_size(data: bytes, level: int) -> None:
    assert gzip_size(gzip.compress(data, level)) in (len(data), None)  # None: too short to say
    assert gzip_size(_PAGE) == len(gzip.decompress(_PAGE))


def test_truncated_gzip_bodies_end_with_an_unlikely_size() -> None:
    sizes = [gzip_size(_PAGE[:end]) for end in range(len(_PAGE))]
    assert sum(size is not None and size <= 10_000_000 for size in sizes) <= len(_PAGE) // 300
    assert gzip_size(zlib.compress(_PAGE)) is None


@pytest.mark.parametrize("seed", range(10))
def test_damage_inside_of_a_gzip_body_is_found_by_extract(seed: int) -> None:
    body = bytearray(_PAGE)
    body[random.Random(seed).randrange(10, len(body) - 4)] ^= 1 << seed % 8
    assert gzip_size(bytes(body)) is not None
    page = RawPage(bytes(body), "text/html", None, {"Content-Encoding": "gzip"})
    text = extract_text(lambda *_: Extracted(None, "the text before the damage"), page)
    assert (text.problem, text.detail) == ("undecodable", "damaged gzip data")


@pytest.mark.parametrize(
    ("header", "coding"),
    [(None, None), ("", None), ("gzip", "gzip"), (" GZIP ", "gzip"), ("x-gzip", "gzip"), ("deflate", "deflate"),
     ("identity", None), ("utf-8", None), ("identity, gzip", "gzip")],
)  # fmt: skip
def test_headers(header: str | None, coding: str | None) -> None:
    assert content_coding(header) == coding


@pytest.mark.parametrize("header", ["br", "zstd", "gzip, br", "gzip, gzip", "compress"])
def test_unsupported_encodings(header: str) -> None:
    with pytest.raises(Failure) as caught:
        content_coding(header)
    assert caught.value.reason == "unsupported_encoding"


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
