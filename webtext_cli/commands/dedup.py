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
def command(shared: Shared, **given: Any) -> None:
    """Remove duplicate and near-duplicate documents.

    Candidates are found by MinHash and verified by their true Jaccard similarity. Of each cluster the document of
    highest score stays; dropped-*.parquet names it for each of the others, clusters.parquet lists all.

    \b
    Example:
      webtext dedup --corpus my-corpus
      webtext dedup -i docs.jsonl.zst -o unique --threshold 0.7
    """
    from pipelines.stages.dedup.stage import dedup

    config = stage_config(DedupConfig, "dedup", shared.corpus, given)
    summary = dedup(
        config,
        documents=shared.input_or("extract"),
        output=shared.stage_output("dedup"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
