"""The options of `webtext remove-wikipedia`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class RemoveWikipediaConfig:
    """Which domains count as Wikipedia."""

    domain: tuple[str, ...] = option(
        (),
        "Further registered domain to remove, in addition to those of data/wikipedia-domains.txt.",
        renamed_from="domains",
    )
    text_field: str = option("text", "Parquet column or JSONL field with the text.")
