"""The options of `webtext overlap-index`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class OverlapIndexConfig:
    """What the index holds, and how often it may err."""

    ngram: int = option(8, "Words in an n-gram.", minimum=1, maximum=100)
    error_rate: float = option(
        1e-8, "The share of absent n-grams that the filter may find.", minimum=1e-15, maximum=0.5
    )
    memory_limit_mb: int = option(
        4096, "Refuse an index that takes more memory than this in each worker.", identity=False, minimum=1
    )
    text_field: str = option("text", "The column or field that holds the text.")
