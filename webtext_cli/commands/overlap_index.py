"""`webtext overlap-index`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.overlap_index.config import OverlapIndexConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("overlap-index")
@config_options(OverlapIndexConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, **given: Any) -> None:
    """Index the corpus's 8-grams in a Bloom filter.

    For benchmarks that are not known yet, and for sharing an index without its text: overlap-report --index reads it.
    With the corpus at hand, overlap-report alone is exact and needs no index.

    \b
    Example:
      webtext overlap-index --corpus my-corpus
      webtext overlap-index -i docs.parquet -o index --ngram 13 --error-rate 1e-6
    """
    from pipelines.stages.overlap_index.stage import overlap_index

    config = stage_config(OverlapIndexConfig, "overlap-index", shared.corpus, given)
    summary = overlap_index(
        config,
        documents=shared.input_or("remove-wikipedia"),
        output=shared.stage_output("overlap-index"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
