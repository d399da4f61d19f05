"""The folder of overlap-index: `index.bloom`, a Bloom filter of n-grams, and `index.json`, its description.

`index.bloom` is a header of 4,096 bytes, then the bits, which are memory-mapped. The header is the magic number, the
format version and the length of the JSON as little-endian uint32, a JSON object in UTF-8 with sorted keys, zero
padding, and the SHA-256 of everything before. Equal headers and bits give equal bytes. Version 1 includes the blocks,
mixing and positions of `algorithms.bloom.blocked`; bit p of a block is bit p % 8 of its byte p // 8.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Iterator
from typing import Annotated, Literal, TypedDict

import msgspec
import numpy as np

from pipelines import storage
from pipelines.algorithms.bloom.blocked import BLOCK_BYTES, Bits
from pipelines.algorithms.ngrams import hashing
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.errors import InputError, translate_format_errors
from pipelines.records import inputs

STAGE_NAME = "overlap-index"
INDEX, DESCRIPTION = "index.bloom", "index.json"
BLOCKED, PYBLOOM_LIVE = "blocked", "pybloom-live"

HEADER_BYTES = 4096
FORMAT_VERSION = 1
# Blocks per read when a filter is streamed: 16 MiB.
PIECE_BLOCKS = 1 << 15

_MAGIC = b"ngrbloom"
_START = struct.Struct("<8sII")
_CHECKED_BYTES = HEADER_BYTES - 32  # without the SHA-256


class WordRules(TypedDict):
    """The options of `Normalization`, and the version of Unicode that defines letters."""

    apostrophes: Literal["split", "drop"]
    letters: Literal["unicode", "ascii"]
    lines: Literal["cross", "stop"]
    unicode: str


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The content of a filter and the options it was built with.

    An n-gram is `n` words under `normalisation`, hashed to 64 bits by the function that `ngram_hash` names; `seed` and
    `k` are those of `add_range`, `blocks` the blocks of 512 bytes. `error_rate` is the target for `sketch_items`
    distinct hashes; `items`, `fill` and `error_bound` were measured on the complete filter. `documents` is the number
    of indexed documents, `corpus` their fingerprint, `bits_sha256` the checksum of the bits in hexadecimal.
    """

    n: Annotated[int, msgspec.Meta(ge=1, le=100)]  # as the option --ngram
    normalisation: WordRules
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

    @property
    def normalization(self) -> Normalization:
        """How text was split into words."""
        return Normalization(**{name: value for name, value in self.normalisation.items() if name != "unicode"})  # type: ignore[arg-type]


class _Description(TypedDict):
    format: str
    corpora: list[str]


@dataclasses.dataclass(frozen=True)
class FilterFolder:
    """A finished index; `corpora` are the fingerprints of all indexed inputs, several for a merged index."""

    path: str
    fingerprint: str
    corpora: list[str]
    file: inputs.InputFile
    header: Header
    text_format: str | None


def open_filter_folder(folder: str) -> FilterFolder:
    """Open the folder of overlap-index; raise InputError if it is not one, unfinished, or of another format.

    The checksums of its description and of the filter's header are verified; that of the bits is not: `file.verify()`
    does that, and reads all of them.
    """
    stage = inputs.open_stage(folder, (STAGE_NAME,))
    description_file, file = stage.file(DESCRIPTION), stage.file(INDEX)
    description_file.verify()
    with translate_format_errors(description_file.path, "a description of an index; re-run `webtext overlap-index`"):
        description = msgspec.convert(storage.read_json(description_file.path), _Description)
    if description["format"] != BLOCKED:
        raise InputError(
            f"{folder}: contains a filter in the format {description['format']!r}, which is for other programs; run "
            "`webtext overlap-index` without --filter to query or merge it"
        )
    with storage.open_read(file.path) as stream:
        data = stream.read(HEADER_BYTES)
    try:
        header = read_header(data, storage.size_bytes(file.path))
    except ValueError as error:
        raise InputError(f"{file.path}: {error}") from error
    if header.ngram_hash != hashing.NAME:
        raise InputError(
            f"{file.path}: uses n-gram hash {header.ngram_hash!r}, this version {hashing.NAME!r}; rebuild it with "
            "`webtext overlap-index`, or query it with the version that built it"
        )
    manifest = stage.manifest
    return FilterFolder(folder, manifest.fingerprint(), description["corpora"], file, header, manifest.text_format)


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
    if hashlib.sha256(data[:_CHECKED_BYTES]).digest() != data[_CHECKED_BYTES:HEADER_BYTES]:
        raise ValueError("has a damaged header; copy the file again or rebuild it")
    try:
        header = msgspec.convert(json.loads(data[_START.size : _START.size + length]), Header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has an invalid header ({error}); rebuild the file") from error
    expected = HEADER_BYTES + header.blocks * BLOCK_BYTES
    if size_bytes != expected:
        what = "is truncated" if size_bytes < expected else "has trailing bytes"
        raise ValueError(f"{what}: it has {size_bytes:,} bytes where its header says {expected:,}; copy it again")
    return header


def map_bits(path: str, header: Header) -> Bits:
    """Return the bits of a file, memory-mapped and read-only, of shape (blocks, 512)."""
    shape = (header.blocks, BLOCK_BYTES)
    return np.memmap(storage.mapped_path(path), np.uint8, "r", offset=HEADER_BYTES, shape=shape)


def read_pieces(path: str, start: int, blocks: int) -> Iterator[Bits]:
    """Yield blocks of a file from byte `start` in pieces of at most 16 MiB; raise InputError if it is truncated."""
    with storage.open_read(path, start=start) as stream:
        for first in range(0, blocks, PIECE_BLOCKS):
            size = min(PIECE_BLOCKS, blocks - first) * BLOCK_BYTES
            data = stream.read(size)
            if len(data) != size:
                raise InputError(f"{path}: is truncated at byte {start + first * BLOCK_BYTES + len(data):,}")
            yield np.frombuffer(data, np.uint8).reshape(-1, BLOCK_BYTES)
