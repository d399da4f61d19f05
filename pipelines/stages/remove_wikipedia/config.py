"""The options of `webtext remove-wikipedia`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class RemoveWikipediaConfig:
    """What counts as Wikipedia."""

    domains: tuple[str, ...] = option(
        (), "More registered domains to remove beside those of data/wikipedia-domains.txt.", flag="--domain"
    )
    text_field: str = option("text", "The column or field that holds the text.")
