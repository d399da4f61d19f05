"""The options that define an n-gram, shared by overlap-index and overlap-report."""

from __future__ import annotations

import dataclasses

from pipelines.algorithms.ngrams.words import Normalization
from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class NgramConfig:
    """The length of an n-gram, and how text is split into words."""

    ngram: int = option(8, "Words per n-gram.", minimum=1, maximum=100)
    apostrophes: str = option(
        "split",
        "How to treat apostrophes within words: split the word (don, t), or drop the apostrophe (dont).",
        choices=("split", "drop"),
    )
    letters: str = option(
        "unicode",
        "Characters that form words: letters and digits of any script, or ASCII only.",
        choices=("unicode", "ascii"),
    )
    lines: str = option("cross", "Whether n-grams cross line ends or stop there.", choices=("cross", "stop"))

    @property
    def normalization(self) -> Normalization:
        """How text is split into words."""
        return Normalization(self.apostrophes, self.letters, self.lines)  # type: ignore[arg-type]
