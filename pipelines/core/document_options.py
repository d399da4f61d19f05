"""The options of the stages that read documents."""

from __future__ import annotations

from typing import Any

from pipelines.core.config import option


def text_field_option() -> Any:
    """Return the option that names the column of the text."""
    return option("text", "Parquet column or JSONL field with the text.")


def max_document_option() -> Any:
    """Return the option that bounds the memory of a document; a Parquet file already bounds its documents."""
    return option(
        None,
        "Longest line of JSONL and largest .txt file in MiB; larger ones are dropped as too_large. By default 64 for a "
        "line; for a file 1024, or 16 times its size on disk if less.",
        minimum=1,
        maximum=2000,
        example=64,
    )
