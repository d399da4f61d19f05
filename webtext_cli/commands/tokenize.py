"""`webtext tokenize`."""

from __future__ import annotations

import json
from typing import Any

import click

from pipelines.stages.tokenize.config import TokenizeConfig
from webtext_cli.console import print_summary, say
from webtext_cli.options import Shared, config_options, config_path, stage_config, stage_options


@click.command("tokenize")
@click.option(
    "--tokenizer",
    metavar="PATH",
    show_default="the corpus's train-bpe",
    help="A tokenizer.json, a tiktoken rank file, or a folder with either, with vocab.json and merges.txt, or with "
    "encoder.json and vocab.bpe.",
)
@click.option(
    "--trace",
    "place",
    metavar="FILE:POSITION",
    help="Write nothing: tell from which document the token at a position of a finished shard comes.",
)
@config_options(TokenizeConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, tokenizer: str | None, place: str | None, **given: Any) -> None:
    """Encode documents into token shards.

    Writes train-*.bin and held-out-*.bin of a fixed number of tokens each, which nanoGPT reads as they are (llm.c and
    NumPy with --format), a table of the documents in each, and tokens.json, which describes them.

    \b
    Example:
      webtext tokenize --corpus my-corpus
      webtext tokenize -i docs.parquet -o tokens --tokenizer gpt2/ --held-out 0.01
      webtext tokenize --trace my-corpus/tokenize/train-00000.bin:1234
    """
    if place is not None:
        _trace(place, tokenizer, shared.as_json)
        return
    from pipelines.stages.tokenize.stage import tokenize

    config = stage_config(TokenizeConfig, "tokenize", shared.corpus, given)
    summary = tokenize(
        config,
        documents=shared.input_or("remove-wikipedia"),
        tokenizer=tokenizer or config_path(shared.corpus, "tokenize", "tokenizer") or shared.stage_input("train-bpe"),
        output=shared.stage_output("tokenize"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)


def _trace(place: str, tokenizer: str | None, as_json: bool) -> None:
    from pipelines.stages.tokenize.trace import trace

    found = trace(place, tokenizer)
    if as_json:
        say(json.dumps(found.to_json(), ensure_ascii=False))
        return
    end = ", which ends the document" if found.is_end else ""
    say(f"token {found.position:,} of {found.shard}: {found.token} {found.text!r}{end}")
    say(f"  document  {found.id}")
    say(f"  url       {found.url or 'none'}")
    say(f"  position  {found.position_in_document:,} in the document")
    say(f"  before    {found.before!r}")
    say(f"  after     {found.after!r}")
