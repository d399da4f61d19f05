"""`webtext tokenize`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.tokenize.config import TokenizeConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("tokenize")
@click.option(
    "--tokenizer",
    metavar="PATH",
    show_default="the corpus's train-bpe",
    help="A tokenizer.json, or a folder with one, with vocab.json and merges.txt, or with encoder.json and vocab.bpe.",
)
@config_options(TokenizeConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, tokenizer: str | None, **given: Any) -> None:
    """Turn documents into token shards.

    Writes train-*.bin and held-out-*.bin, which nanoGPT reads as they are (llm.c with --format llmc), a table of the
    documents in each, and tokens.json, which describes them.

    \b
    Example:
      webtext tokenize --corpus my-corpus
      webtext tokenize -i docs.parquet -o tokens --tokenizer gpt2/ --held-out 0.01
    """
    from pipelines.stages.tokenize.stage import tokenize

    config = stage_config(TokenizeConfig, "tokenize", shared.corpus, given)
    summary = tokenize(
        config,
        documents=shared.input_or("remove-wikipedia"),
        tokenizer=tokenizer or shared.stage_input("train-bpe"),
        output=shared.stage_output("tokenize"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
