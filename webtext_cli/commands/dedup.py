"""`webtext dedup`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.errors import UsageError
from pipelines.stages.dedup.config import DedupConfig
from webtext_cli.console import print_summary
from webtext_cli.options import DOCUMENTS_HELP, Shared, config_options, stage_config, stage_options


@click.command("dedup")
@config_options(DedupConfig)
@click.option(
    "--self-test",
    is_flag=True,
    help="Plant altered copies of a sample of the documents, deduplicate these, and print how many are found; leave "
    "nothing behind.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, 100_000),
    help="Number of documents that --self-test copies. [default: 1000]",
)
@stage_options(DOCUMENTS_HELP)
def command(shared: Shared, self_test: bool, sample: int | None, **flags: Any) -> None:
    """Remove duplicate and near-duplicate documents.

    Exact duplicates are equal after normalization; near-duplicates share most of their shingles, runs of --ngram words.
    MinHash finds candidate pairs, which are verified by their Jaccard similarity. A document is dropped if a duplicate
    of higher score, or in an earlier corpus (--against), is kept; dropped-*.parquet names it, clusters.parquet lists
    all duplicates, and report.html shows pairs side by side.

    \b
    Examples:
      webtext dedup --corpus my-corpus
      webtext dedup -i docs.jsonl.zst -o unique --threshold 0.7
      webtext dedup -i 2018-01.parquet -o new-month --against my-corpus/dedup
      webtext dedup -i docs.jsonl.zst --threshold 0.7 --self-test
    """
    config = stage_config(DedupConfig, "dedup", shared.corpus, flags)
    if self_test:
        from pipelines.stages.dedup.self_test import SAMPLE
        from pipelines.stages.dedup.self_test import self_test as measure
        from webtext_cli.tables.documents import print_self_test

        result = measure(
            config, documents=shared.input_of("dedup"), options=shared.run_options(), sample=sample or SAMPLE
        )
        print_self_test(result, shared.as_json)
        return
    if sample is not None:
        raise UsageError("--sample has no effect without --self-test; omit it")
    from pipelines.stages.dedup.stage import dedup

    summary = dedup(
        config,
        documents=shared.input_of("dedup"),
        output=shared.stage_output("dedup"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
