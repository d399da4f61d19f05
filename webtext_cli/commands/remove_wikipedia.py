"""`webtext remove-wikipedia`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("remove-wikipedia")
@config_options(RemoveWikipediaConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, **flags: Any) -> None:
    """Remove the documents of Wikipedia and its mirrors.

    The paper removes Wikipedia, since many benchmarks consist of its text. A document is dropped if the registered
    domain of its URL is in data/wikipedia-domains.txt or given by --domain; dropped-*.parquet lists these documents.

    \b
    Examples:
      webtext remove-wikipedia --corpus my-corpus
      webtext remove-wikipedia -i docs.parquet -o clean --domain my-mirror.example
    """
    from pipelines.stages.remove_wikipedia.stage import remove_wikipedia

    config = stage_config(RemoveWikipediaConfig, "remove-wikipedia", shared.corpus, flags)
    summary = remove_wikipedia(
        config,
        documents=shared.input_or("dedup"),
        output=shared.stage_output("remove-wikipedia"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
