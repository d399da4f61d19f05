"""`webtext dedup`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.dedup.config import DedupConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("dedup")
@config_options(DedupConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, **flags: Any) -> None:
    """Remove duplicate and near-duplicate documents.

    Exact duplicates are equal after normalization; near-duplicates share most of their shingles, runs of --ngram words.
    MinHash finds candidate pairs, which are verified by their Jaccard similarity. A document is dropped if a duplicate
    of higher score, or in an earlier corpus (--against), is kept; dropped-*.parquet names it, clusters.parquet lists
    all duplicates.

    \b
    Examples:
      webtext dedup --corpus my-corpus
      webtext dedup -i docs.jsonl.zst -o unique --threshold 0.7
      webtext dedup -i 2018-01.parquet -o new-month --against my-corpus/dedup
    """
    from pipelines.stages.dedup.stage import dedup

    config = stage_config(DedupConfig, "dedup", shared.corpus, flags)
    summary = dedup(
        config,
        documents=shared.input_or("extract"),
        output=shared.stage_output("dedup"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
