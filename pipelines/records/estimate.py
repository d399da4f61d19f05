"""Estimates the amount of text in files from their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.records.inputs import InputFile
from pipelines.records.reader import TABLES, file_format
from pipelines.storage.compression import SUFFIXES

# Bytes of text per byte of a file of prose: Parquet and compressed lines (benchmarks/plan.md), and plain lines.
_TEXT_PER_COMPRESSED_BYTE, _TEXT_PER_BYTE = 2.5, 0.9


def estimate_text_bytes(files: Sequence[InputFile]) -> int:
    """Estimate the bytes of text in files of documents; for prose, the result is right within a factor of two or so."""
    sizes = {file.path.lower(): file.size_bytes for file in files}
    compressed = {path for path in sizes if path.endswith(SUFFIXES) or file_format(path) in TABLES}
    return round(
        sum(
            size * (_TEXT_PER_COMPRESSED_BYTE if path in compressed else _TEXT_PER_BYTE) for path, size in sizes.items()
        )
    )
