"""The folder of overlap-index: a Bloom filter of n-grams and its description."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import numpy as np

from pipelines import storage
from pipelines.algorithms.bloom.blocked import BLOCK_BYTES, Bits
from pipelines.algorithms.bloom.file_format import HEADER_BYTES, Header, read_header
from pipelines.algorithms.ngrams import hashing
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization
from pipelines.engine.manifest import Count
from pipelines.errors import InputError, translate_format_errors
from pipelines.records import inputs

STAGE_NAME = "overlap-index"
INDEX, DESCRIPTION = "index.bloom", "index.json"
BLOCKED, PYBLOOM_LIVE = "blocked", "pybloom-live"
# Blocks per read when a filter is streamed: 16 MiB.
PIECE_BLOCKS = 1 << 15
_PYBLOOM_HEADER_BYTES = 40


class _Description(TypedDict):
    format: str
    n: Annotated[int, msgspec.Meta(ge=1, le=100)]  # as the option --ngram
    corpus: str
    items: Count
    error_rate: float
    corpora: NotRequired[list[str]]


@dataclasses.dataclass(frozen=True)
class FilterFolder:
    """A finished index: its `description` (index.json), its `file`, and the `header` of a blocked filter."""

    path: str
    fingerprint: str
    documents: int
    description: Mapping[str, Any]
    file: inputs.InputFile
    header: Header | None

    @property
    def n(self) -> int:
        """The words of an n-gram."""
        return int(self.description["n"])

    @property
    def corpus(self) -> str:
        """The fingerprint of the documents."""
        return str(self.description["corpus"])

    @property
    def corpora(self) -> list[str]:
        """The fingerprints of all indexed inputs: several for merged indexes."""
        return list(self.description.get("corpora", [self.corpus]))

    @property
    def normalization(self) -> Normalization:
        """How text was split into words; indexes of early versions have the defaults."""
        fields = (field.name for field in dataclasses.fields(Normalization))
        return Normalization(**{name: self.description.get(name, getattr(DEFAULT, name)) for name in fields})

    @property
    def blocked_header(self) -> Header:
        """The header of a blocked filter; raises InputError for a pybloom-live filter."""
        if self.header is None:
            raise InputError(
                f"{self.path}: is a pybloom-live filter, which cannot be merged; build it without --filter"
            )
        return self.header


def open_filter_folder(folder: str) -> FilterFolder:
    """Open the folder of overlap-index; raise InputError if it is not one, unfinished, or of an unknown format.

    The checksums of its description and of the filter's header are verified; that of the bits is not: `file.verify()`
    does that, and reads all of them.
    """
    stage = inputs.open_stage(folder, (STAGE_NAME,))
    description_file, file = stage.file(DESCRIPTION), stage.file(INDEX)
    description_file.verify()
    with translate_format_errors(description_file.path, "a description of an index; re-run `webtext overlap-index`"):
        description = storage.read_json(description_file.path)
        msgspec.convert(description, _Description)
        msgspec.convert(description, Normalization)
    kind = description["format"]
    if kind not in (BLOCKED, PYBLOOM_LIVE):
        raise InputError(f"{description_file.path}: unknown format {kind!r}; use a newer version of webtext")
    header = _read_header(file.path) if kind == BLOCKED else None
    return FilterFolder(
        path=folder,
        fingerprint=stage.fingerprint,
        documents=stage.manifest.records_out,
        description=description,
        file=file,
        header=header,
    )


def read_pybloom(path: str) -> Any:
    """Return the `pybloom_live.BloomFilter` of a file."""
    from pybloom_live import BloomFilter

    expected = "a filter of pybloom-live; re-run `webtext overlap-index`"
    with storage.open_read(path) as stream, translate_format_errors(path, expected):
        header = stream.read(_PYBLOOM_HEADER_BYTES)
        slices, slice_bits = (int.from_bytes(header[start : start + 8], "little") for start in (8, 16))
        # The library computes a hash for each slice before it looks at the size of the file.
        if len(header) < _PYBLOOM_HEADER_BYTES or not 0 < slices * slice_bits <= 8 * storage.size_bytes(path):
            raise ValueError(f"{slices} slices of {slice_bits} bits")
        stream.seek(0)
        return BloomFilter.fromfile(stream)


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


def _read_header(path: str) -> Header:
    with storage.open_read(path) as stream:
        data = stream.read(HEADER_BYTES)
    try:
        header = read_header(data, storage.size_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if header.ngram_hash != hashing.NAME:
        raise InputError(
            f"{path}: hashes n-grams by {header.ngram_hash!r}, this version by {hashing.NAME!r}; rebuild it with "
            "`webtext overlap-index`, or query it with the version that built it"
        )
    return header
