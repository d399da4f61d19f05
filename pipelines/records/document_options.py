"""The options of the stages that read documents."""

from __future__ import annotations

from typing import Any

from pipelines.engine.config import option


def text_field_option() -> Any:
    """Return the option that names the column of the text."""
    return option("text", "Column or field with the text; `doc.content` is a field of a nested object.")


def id_field_option() -> Any:
    """Return the option that names the column of the id."""
    return option(None, "Column or field with the id, if it is not `id`.", example="docid")


def document_option() -> Any:
    """Return the option that says what a document of a .txt file is."""
    return option("file", "What one document of a .txt file is: the file, or a line of it.", choices=("file", "line"))


def max_document_option() -> Any:
    """Return the option that bounds the memory of a document; a Parquet or Arrow file already bounds its documents."""
    return option(
        None,
        "Longest record (line of JSONL, row of CSV) and largest text file in MiB; larger ones are dropped as "
        "too_large. By default 64 for a record; for a file 1024, or 16 times its size on disk if less.",
        minimum=1,
        maximum=2000,
        example=64,
    )
