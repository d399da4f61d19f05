"""The options of the stages that read documents."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import INPUT_OUTPUT, option


@dataclasses.dataclass(frozen=True)
class DocumentConfig:
    """Which fields of the input are a document's text and id, and how large it may be."""

    text_field: str = option(
        "text", "Column or field with the text; use a dot for nested fields (`doc.content`).", group=INPUT_OUTPUT
    )
    id_field: str | None = option(
        None, "Column or field with the document id. By default `id`, if present.", example="docid", group=INPUT_OUTPUT
    )
    document: str = option(
        "file",
        "Documents in a .txt file: one document per file or per line.",
        choices=("file", "line"),
        group=INPUT_OUTPUT,
    )
    # A Parquet or Arrow file already bounds its documents.
    max_document_mib: int | None = option(
        None,
        "Maximum size of a record (line of JSONL, row of CSV) or text file in MiB; larger ones are dropped as "
        "too_large. [default: 64 per record; 1,024 per file, or 16 times its compressed size if smaller]",
        minimum=1,
        maximum=2000,
        example=64,
        group=INPUT_OUTPUT,
    )

    @property
    def max_bytes(self) -> int | None:
        """The largest document in bytes; None for the default, see `bounded`."""
        return self.max_document_mib << 20 if self.max_document_mib else None
