"""The options of `webtext overlap-index`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig
from pipelines.records.ngram_options import NgramConfig


@dataclasses.dataclass(frozen=True)
class OverlapIndexConfig(NgramConfig, DocumentConfig):
    """What the index contains, and its target false-positive rate."""

    error_rate: float = option(1e-8, "Target false-positive rate of the filter.", minimum=1e-15, maximum=0.5)
    items: int | None = option(
        None,
        "Number of distinct n-grams to size the filter for; by default estimated from the documents. If indexes will "
        "be merged, set this to their combined total.",
        minimum=1,
        example=7_000_000_000,
    )
    filter: str = option(
        "blocked",
        "File format of the filter: `blocked` can be queried by overlap-report and merged; `pybloom-live` is a file of "
        "that library, for other programs.",
        choices=("blocked", "pybloom-live"),
    )
    memory_limit_mib: int = option(
        1024,
        "Memory limit per worker. Larger filters are built in parts, one pass over the documents per part; "
        "pybloom-live filters cannot be split and are refused.",
        identity=False,
        minimum=1,
    )
