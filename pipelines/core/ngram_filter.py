"""The folder of overlap-index: a Bloom filter of n-grams, and what it says of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipelines.algorithms.bloom.blocked import BLOCK_BYTES, Bits
from pipelines.algorithms.bloom.file_format import HEADER_BYTES, Header, read_header
from pipelines.algorithms.ngrams import hashing
from pipelines.algorithms.ngrams.words import DEFAULT, Normalization
from pipelines.core import inputs, storage
from pipelines.core.errors import InputError

STAGE_NAME = "overlap-index"
INDEX, DESCRIPTION = "index.bloom", "index.json"
BLOCKED, PYBLOOM_LIVE = "blocked", "pybloom-live"
# Blocks that are read at a time where a filter streams: 16 MiB.
PIECE_BLOCKS = 1 << 15


@dataclasses.dataclass(frozen=True)
class FilterFolder:
    """A finished index: its `description` (index.json), its `file`, and the `header` of one in our own format."""

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
        """The fingerprints of all inputs that were indexed: several where indexes were merged."""
        return list(self.description.get("corpora", [self.corpus]))

    @property
    def normalization(self) -> Normalization:
        """How words were made; indexes from before there were options have the defaults."""
        fields = (field.name for field in dataclasses.fields(Normalization))
        return Normalization(**{name: self.description.get(name, getattr(DEFAULT, name)) for name in fields})


def open_filter_folder(folder: str) -> FilterFolder:
    """Open the folder of overlap-index; raise InputError where it is none, unfinished, or of another format.

    Its description and the header of its filter are checked by their checksums, its bits are not: `file.verify()` does
    that, which reads all of them.
    """
    opened = inputs.open_stage(folder, (STAGE_NAME,))
    described, file = opened.file(DESCRIPTION), opened.file(INDEX)
    described.verify()
    description = storage.read_json(described.path)
    kind = description.get("format")
    if kind not in (BLOCKED, PYBLOOM_LIVE):
        raise InputError(
            f"{described.path}: is of the format {kind!r}, which this version does not know; use a newer one"
        )
    header = _header_of(file.path) if kind == BLOCKED else None
    return FilterFolder(folder, opened.fingerprint, opened.manifest.records_out, description, file, header)


def map_bits(path: str, header: Header) -> Bits:
    """Return the bits of a local file, mapped into memory, read-only, of shape (blocks, 512)."""
    shape = (header.blocks, BLOCK_BYTES)
    return np.memmap(storage.local_path(path), np.uint8, "r", offset=HEADER_BYTES, shape=shape)


def read_pieces(path: str, start: int, blocks: int) -> Iterator[Bits]:
    """Yield so many blocks of a file, from a byte on, in pieces of at most 16 MiB.

    Raises InputError where the file ends before.
    """
    with storage.open_read(path) as stream:
        stream.seek(start)
        for first in range(0, blocks, PIECE_BLOCKS):
            size = min(PIECE_BLOCKS, blocks - first) * BLOCK_BYTES
            data = stream.read(size)
            if len(data) != size:
                raise InputError(f"{path}: ends at byte {start + first * BLOCK_BYTES + len(data):,}, it is truncated")
            yield np.frombuffer(data, np.uint8).reshape(-1, BLOCK_BYTES)


def _header_of(path: str) -> Header:
    with storage.open_read(path) as stream:
        data = stream.read(HEADER_BYTES)
    try:
        header = read_header(data, storage.size_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if header.ngram_hash != hashing.NAME:
        raise InputError(
            f"{path}: hashes n-grams as {header.ngram_hash!r}, this version as {hashing.NAME!r}; make it anew "
            "with webtext overlap-index, or ask it with the version that made it"
        )
    return header
