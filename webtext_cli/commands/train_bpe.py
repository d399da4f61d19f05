"""`webtext train-bpe`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.stages.train_bpe.config import TrainBpeConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("train-bpe")
@config_options(TrainBpeConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, **given: Any) -> None:
    """Train a byte-level BPE tokenizer as GPT-2's.

    The folder holds one tokenizer in four forms: tokenizer.json, vocab.json and merges.txt, and ranks.tiktoken. Ids are
    laid out as in GPT-2: 256 bytes, the merges, <|endoftext|> last.

    \b
    Example:
      webtext train-bpe --corpus my-corpus
      webtext train-bpe -i docs.jsonl.zst -o my-tokenizer --vocab-size 8192
    """
    from pipelines.stages.train_bpe.stage import train_bpe

    config = stage_config(TrainBpeConfig, "train-bpe", shared.corpus, given)
    summary = train_bpe(
        config,
        documents=shared.input_or("remove-wikipedia"),
        output=shared.stage_output("train-bpe"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)
