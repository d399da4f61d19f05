"""`webtext tokenize`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipelines.storage import join
from webtext_cli.console import print_result, say
from webtext_cli.options import DOCUMENTS_HELP, StageCall, stage_command

if TYPE_CHECKING:
    from pipelines.stages.tokenize.trace import TracedToken


@stage_command("tokenize", DOCUMENTS_HELP)
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
    help="Print the document of the token at a position of a finished shard; write nothing. FILE is relative "
    "to the current folder.",
)
def command(call: StageCall, tokenizer: str | None, location: str | None) -> None:
    """Encode documents into token shards.

    Writes train-*.bin and held-out-*.bin with a fixed number of tokens each (with --format, files for nanoGPT, llm.c or
    NumPy), a table of the documents in each file, and tokens.json, which describes them.

    \b
    Examples:
      webtext tokenize --corpus my-corpus
      webtext tokenize docs.parquet -o tokens --tokenizer gpt2/ --held-out 0.01
      webtext tokenize --corpus my-corpus --format nanogpt
      webtext tokenize --trace my-corpus/tokenize/train-00000.bin:1234
    """
    if location is not None:
        from pipelines.stages.tokenize.trace import trace

        print_result(trace(location, tokenizer), call.as_json, _print_token)
        return
    configured = call.configured(tokenizer=tokenizer)["tokenizer"]
    call.run(tokenizer=configured or join(call.corpus, "train-bpe"))


def _print_token(token: TracedToken) -> None:
    end = ", which ends the document" if token.is_end else ""
    say(f"token {token.position:,} of {token.shard}: {token.token} {token.text!r}{end}")
    say(f"  document  {token.id}")
    say(f"  url       {token.url or 'none'}")
    say(f"  position  {token.position_in_document:,} in the document")
    say(f"  before    {token.before!r}")
    say(f"  after     {token.after!r}")
