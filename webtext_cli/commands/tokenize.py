"""`webtext tokenize`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import CorpusConfig
from pipelines.format import to_json
from pipelines.stages.tokenize.config import TokenizeConfig
from webtext_cli.console import print_summary, say
from webtext_cli.options import DOCUMENTS_HELP, Shared, config_options, stage_config, stage_options


@click.command("tokenize")
@click.option(
    "--tokenizer",
    metavar="PATH",
    show_default="the corpus's train-bpe",
    help="A tokenizer.json, a file of tiktoken ranks, or a folder with one of these, with vocab.json and merges.txt, "
    "or with encoder.json and vocab.bpe.",
)
@click.option(
    "--trace",
    "location",
    metavar="FILE:POSITION",
    help="Print the document of the token at a position of a finished shard, and write nothing.",
)
@config_options(TokenizeConfig)
@stage_options(DOCUMENTS_HELP)
def command(shared: Shared, tokenizer: str | None, location: str | None, **flags: Any) -> None:
    """Encode documents into token shards.

    Writes train-*.bin and held-out-*.bin with a fixed number of tokens each (with --format, the files of nanoGPT, llm.c
    or NumPy), a table of the documents in each file, and tokens.json, which describes them.

    \b
    Examples:
      webtext tokenize --corpus my-corpus
      webtext tokenize -i docs.parquet -o tokens --tokenizer gpt2/ --held-out 0.01
      webtext tokenize --corpus my-corpus --format nanogpt
      webtext tokenize --trace my-corpus/tokenize/train-00000.bin:1234
    """
    if location is not None:
        _trace(location, tokenizer, shared.as_json)
        return
    from pipelines.stages.tokenize.stage import tokenize

    config = stage_config(TokenizeConfig, "tokenize", shared.corpus, flags)
    summary = tokenize(
        config,
        documents=shared.input_of("tokenize"),
        tokenizer=tokenizer
        or CorpusConfig(shared.corpus).paths("tokenize").get("tokenizer")
        or shared.stage_input("train-bpe"),
        output=shared.stage_output("tokenize"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)


def _trace(location: str, tokenizer: str | None, as_json: bool) -> None:
    from pipelines.stages.tokenize.trace import trace

    token = trace(location, tokenizer)
    if as_json:
        say(to_json(token))
        return
    end = ", which ends the document" if token.is_end else ""
    say(f"token {token.position:,} of {token.shard}: {token.token} {token.text!r}{end}")
    say(f"  document  {token.id}")
    say(f"  url       {token.url or 'none'}")
    say(f"  position  {token.position_in_document:,} in the document")
    say(f"  before    {token.before!r}")
    say(f"  after     {token.after!r}")
