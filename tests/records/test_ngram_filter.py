"""The header of a filter's file, and the errors for other files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_filter import add

from pipelines.algorithms.bloom.blocked import BLOCK_BYTES, empty_bits
from pipelines.records.ngram_filter import HEADER_BYTES, Header, WordRules, read_header, write_header

_HEADER = Header(
    n=8,
    normalisation={"apostrophes": "split", "letters": "unicode", "lines": "cross", "unicode": "15.0.0"},
    ngram_hash="fingerprint-1",
    seed=0,
    error_rate=1e-8,
    sketch_items=1000,
    blocks=11,
    k=25,
    items=998,
    fill=0.43,
    error_bound=9.1e-9,
    documents=17,
    corpus="0" * 64,
    bits_sha256="ab" * 32,
)
_SIZE = HEADER_BYTES + 11 * BLOCK_BYTES


def test_a_header_round_trips() -> None:
    data = write_header(_HEADER)
    assert len(data) == HEADER_BYTES
    assert read_header(data, _SIZE) == _HEADER
    assert read_header(data + b"bits", _SIZE) == _HEADER
    assert write_header(read_header(data, _SIZE)) == data


def test_the_layout_is_the_documented_one() -> None:
    data = write_header(_HEADER)
    magic, version, length = struct.unpack("<8sII", data[:16])
    assert (magic, version) == (b"ngrbloom", 1)
    assert json.loads(data[16 : 16 + length]) == dataclasses.asdict(_HEADER)
    assert set(data[16 + length : 4064]) == {0}
    assert data[4064:] == hashlib.sha256(data[:4064]).digest()


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.from_type(WordRules),
)
def test_all_values_round_trip(fill: float, bound: float, seed: int, normalization: WordRules) -> None:
    header = dataclasses.replace(_HEADER, fill=fill, error_bound=bound, seed=seed, normalisation=normalization)
    assert read_header(write_header(header), _SIZE) == header


@given(st.integers(16, HEADER_BYTES - 1), st.integers(0, 7))
def test_a_flipped_bit_is_detected(at: int, bit: int) -> None:
    data = bytearray(write_header(_HEADER))
    data[at] ^= 1 << bit
    with pytest.raises(ValueError, match="has a damaged header"):
        read_header(bytes(data), _SIZE)


def test_errors_name_the_problem() -> None:
    data = write_header(_HEADER)
    newer = data[:8] + struct.pack("<I", 2) + data[12:]
    for damaged, size, said in [
        (b"", 0, "is not an n-gram filter"),
        (b"PAR1" + data[4:], _SIZE, "is not an n-gram filter"),
        (newer, _SIZE, "is of format 2, this version reads 1"),
        (data[:100], 100, "is truncated: it has 100 bytes, its header alone 4,096"),
        (data, _SIZE - 1, "is truncated: it has 9,727 bytes where its header says 9,728"),
        (data, _SIZE + 512, "has trailing bytes"),
    ]:
        with pytest.raises(ValueError, match=said):
            read_header(damaged, size)


def test_a_header_with_other_fields_is_refused() -> None:
    text = json.dumps({"n": 8}).encode()
    start = (struct.pack("<8sII", b"ngrbloom", 1, len(text)) + text).ljust(HEADER_BYTES - 32, b"\0")
    with pytest.raises(ValueError, match="missing required field `normalisation`"):
        read_header(start + hashlib.sha256(start).digest(), _SIZE)


def test_an_inconsistent_header_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        write_header(dataclasses.replace(_HEADER, corpus="x" * HEADER_BYTES))


def test_the_bytes_of_a_filter_are_stable() -> None:
    """A change of the mixing, the blocks or the positions would make all files wrong that are there already."""
    bits = empty_bits(11)
    add(bits, np.arange(500, dtype=np.uint64), 25, seed=3)
    assert hashlib.sha256(bits).hexdigest() == "b0595fed90b656f72eac94635360f108a1641c5700a7b691c5348f34f1fde5c2"
