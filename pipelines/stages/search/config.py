"""The options of `webtext search --build`."""

from __future__ import annotations

import dataclasses

from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class SearchConfig(DocumentConfig):
    """How the documents are read."""
