"""The options of `webtext overlap-report`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class OverlapReportConfig:
    """What counts as overlap."""

    ngram: int = option(8, "Words in an n-gram.", minimum=1, maximum=100)
    txt_example: str = option(
        "line",
        "An example of a .txt benchmark: each line, each paragraph (divided by blank lines), or the whole file.",
        choices=("line", "paragraph", "file"),
    )
    text_field: str = option("text", "The column or field of the documents that holds the text.")
