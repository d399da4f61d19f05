"""The options of `webtext overlap-report`."""

from __future__ import annotations

import dataclasses

from pipelines.algorithms.ngrams.words import Normalization
from pipelines.core.config import option
from pipelines.core.ngram_options import apostrophes_option, letters_option, lines_option, ngram_option


@dataclasses.dataclass(frozen=True)
class OverlapReportConfig:
    """What counts as overlap."""

    ngram: int = ngram_option()
    apostrophes: str = apostrophes_option()
    letters: str = letters_option()
    lines: str = lines_option()
    example: str = option(
        "auto",
        "An example: a line of a .txt and a record of other files (auto), each line, each paragraph (divided by blank "
        "lines), or all of a file together (document).",
        choices=("auto", "line", "paragraph", "document"),
    )
    ignore_common: int | None = option(
        None, "Leave n-grams out that stand in more documents than this, as boilerplate does.", minimum=1, example=10
    )
    held_out: float = option(
        0.0,
        "The share of documents that `tokenize` held out: they are left out of the corpus, and stand beside --samples.",
        minimum=0.0,
        maximum=0.9,
    )
    sensitivity: bool = option(
        False, "Also count with every normalization, and with n-grams of 8 and of 13 words, in the same pass."
    )
    self_test: bool = option(
        False, "Also plant copies of examples in a sample of the corpus, and tell how many are found."
    )
    write_clean: str | None = option(
        None,
        "Also write the corpus without the documents that overlap, or the benchmarks without the examples.",
        choices=("corpus", "benchmark"),
    )
    probes: int | None = option(
        None,
        "With --index: how many n-grams of made-up words to ask for, as a test of its error rate; by default 3 divided "
        "by the rate, at most 1,000 million.",
        minimum=1,
        example=1_000_000,
    )
    text_field: str = option("text", "The column or field of the documents that holds the text.")

    @property
    def normalization(self) -> Normalization:
        """How words are made of text."""
        return Normalization(self.apostrophes, self.letters, self.lines)  # type: ignore[arg-type]
