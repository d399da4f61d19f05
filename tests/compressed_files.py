"""Files compressed as their names say."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import zstandard

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".gz": gzip.compress,
}


def write_compressed(folder: Path, name: str, data: str | bytes) -> Path:
    """Write a file, compressed by the suffix of its name, and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = data.encode() if isinstance(data, str) else data
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return path
