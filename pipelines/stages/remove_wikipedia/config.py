"""The options of `webtext remove-wikipedia`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option
from pipelines.core.document_options import max_document_option, text_field_option


@dataclasses.dataclass(frozen=True)
class RemoveWikipediaConfig:
    """Which domains count as Wikipedia."""

    domain: tuple[str, ...] = option(
        (),
        "Further registered domain to remove, in addition to those of data/wikipedia-domains.txt.",
        renamed_from="domains",
    )
    text_field: str = text_field_option()
    max_document_mb: int | None = max_document_option()
