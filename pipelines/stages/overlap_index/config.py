"""The options of `webtext overlap-index`."""

from __future__ import annotations

import dataclasses

from pipelines.algorithms.ngrams.words import Normalization
from pipelines.core.config import option
from pipelines.core.ngram_options import apostrophes_option, letters_option, lines_option, ngram_option


@dataclasses.dataclass(frozen=True)
class OverlapIndexConfig:
    """What the index holds, and how often it may err."""

    ngram: int = ngram_option()
    apostrophes: str = apostrophes_option()
    letters: str = letters_option()
    lines: str = lines_option()
    error_rate: float = option(
        1e-8, "The share of absent n-grams that the filter may find.", minimum=1e-15, maximum=0.5
    )
    items: int | None = option(
        None,
        "Make the filter for so many different n-grams, not for as many as the documents hold: indexes that are to be "
        "merged must be made for the same number, which is that of all of them together.",
        minimum=1,
        example=7_000_000_000,
    )
    filter: str = option(
        "blocked",
        "Our filter, which is mapped into memory and can be merged; or a file of the library pybloom-live.",
        choices=("blocked", "pybloom-live"),
    )
    memory_limit_mb: int = option(
        1024,
        "Memory for a part of the filter in each worker. A larger filter is made in more parts, each in a pass over "
        "the documents; one of pybloom-live, which has no parts, is refused.",
        identity=False,
        minimum=1,
    )
    text_field: str = option("text", "The column or field that holds the text.")

    @property
    def normalization(self) -> Normalization:
        """How words are made of text."""
        return Normalization(self.apostrophes, self.letters, self.lines)  # type: ignore[arg-type]
