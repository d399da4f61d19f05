"""File format of a Bloom filter: a header of 4,096 bytes, then the bits, which are memory-mapped.

The header is the magic number, the format version and the length of the JSON as little-endian uint32, a JSON object in
UTF-8 with sorted keys, zero padding, and the SHA-256 of everything before. Equal headers and bits give equal bytes.
Version 1 includes the blocks, mixing and positions of `blocked`; bit p of a block is bit p % 8 of its byte p // 8.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from typing import Annotated

import msgspec

from pipelines.algorithms.bloom.blocked import BLOCK_BYTES

HEADER_BYTES = 4096
FORMAT_VERSION = 1

_MAGIC = b"ngrbloom"
_START = struct.Struct("<8sII")
_CHECKSUM_BYTES = 32
_CHECKED_BYTES = HEADER_BYTES - _CHECKSUM_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The content of a filter and the options it was built with.

    An n-gram is `n` words under `normalization`, hashed to 64 bits by the function that `ngram_hash` names; `seed` and
    `k` are those of `add_range`, `blocks` the blocks of 512 bytes. `error_rate` is the target for `sketch_items`
    distinct hashes; `items`, `fill` and `error_bound` were measured on the complete filter. `documents` is the number
    of indexed documents, `corpus` their fingerprint, `bits_sha256` the checksum of the bits in hexadecimal.
    """

    n: Annotated[int, msgspec.Meta(ge=1)]
    normalisation: dict[str, str]
    ngram_hash: str
    seed: int
    error_rate: float
    sketch_items: int
    blocks: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    k: Annotated[int, msgspec.Meta(ge=1, le=255)]
    items: int
    fill: float
    error_bound: float
    documents: int
    corpus: str
    bits_sha256: str


def write_header(header: Header) -> bytes:
    """Return the header's 4,096 bytes; raise ValueError if it does not fit."""
    text = json.dumps(dataclasses.asdict(header), sort_keys=True, separators=(",", ":")).encode()
    if _START.size + len(text) > _CHECKED_BYTES:
        raise ValueError(f"a header of {len(text):,} bytes does not fit into {HEADER_BYTES:,}: shorten its names")
    start = (_START.pack(_MAGIC, FORMAT_VERSION, len(text)) + text).ljust(_CHECKED_BYTES, b"\0")
    return start + hashlib.sha256(start).digest()


def read_header(data: bytes, size_bytes: int) -> Header:
    """Return the header in the first 4,096 bytes of a file of `size_bytes`.

    Raises ValueError (its message follows the file's name) for a file of another kind or of a newer format, a damaged
    header, and a file whose size is not the one in its header.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("is not an n-gram filter; build one with webtext overlap-index")
    if len(data) < HEADER_BYTES:
        raise ValueError(f"is truncated: it has {size_bytes:,} bytes, its header alone {HEADER_BYTES:,}")
    _, version, length = _START.unpack_from(data)
    if version > FORMAT_VERSION:
        raise ValueError(f"is of format {version}, this version reads {FORMAT_VERSION}; install a newer one")
    header_bytes = data[:HEADER_BYTES]
    if hashlib.sha256(header_bytes[:_CHECKED_BYTES]).digest() != header_bytes[_CHECKED_BYTES:]:
        raise ValueError("has a damaged header; copy the file again or rebuild it")
    try:
        header = msgspec.convert(json.loads(header_bytes[_START.size : _START.size + length]), Header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has an invalid header ({error}); rebuild the file") from error
    expected = HEADER_BYTES + header.blocks * BLOCK_BYTES
    if size_bytes != expected:
        what = "is truncated" if size_bytes < expected else "has bytes behind its end"
        raise ValueError(f"{what}: it has {size_bytes:,} bytes where its header says {expected:,}; copy it again")
    return header
