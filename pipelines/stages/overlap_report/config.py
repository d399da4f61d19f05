"""The options of `webtext overlap-report`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig
from pipelines.records.ngram_options import NgramConfig


@dataclasses.dataclass(frozen=True)
class OverlapReportConfig(NgramConfig, DocumentConfig):
    """What counts as overlap, and what is reported."""

    example: str = option(
        "auto",
        "Unit of a benchmark: a line, a paragraph (separated by blank lines), or a document (whole file); auto: lines "
        "of .txt files, records of other formats.",
        choices=("auto", "line", "paragraph", "document"),
    )
    ignore_common: int | None = option(
        None, "Ignore n-grams that occur in more than this many documents, such as boilerplate.", minimum=1, example=10
    )
    held_out: float = option(
        0.0,
        "Fraction of documents that `tokenize` held out: excluded from the corpus, and compared with --generated.",
        minimum=0.0,
        maximum=0.9,
    )
    sensitivity: bool = option(
        False,
        "Also report the overlap for all 16 combinations of --apostrophes, --letters, --lines and --ngram 8 or 13. "
        "One pass over the corpus, but 16 times the memory.",
    )
    write_clean: str | None = option(
        None,
        "Also write the corpus without the overlapping documents, or the benchmarks without the overlapping examples.",
        choices=("corpus", "benchmark"),
    )
    probes: int | None = option(
        None,
        "With --index: number of random n-grams that measure the false-positive rate; by default 3 / the target rate, "
        "between 1 million and 1 billion.",
        minimum=1,
        example=1_000_000,
    )
