"""`webtext export-text`."""

from __future__ import annotations

import sys

import click

from webtext_cli.console import make_progress
from webtext_cli.options import corpus_option, debug_option, with_standard_input


@click.command("export-text")
@corpus_option
@click.option(
    "--input",
    "-i",
    metavar="PATH",
    multiple=True,
    help="Documents, instead of the corpus's (repeatable); - is standard input.",
)
@click.option(
    "--text-field",
    default="text",
    show_default=True,
    metavar="NAME",
    help="Of --input: the column or field of the text.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    default="-",
    help="The file to write, .jsonl or .txt, also .gz or .zst; by default standard output.",
)
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "txt"]), help="Default: by the name of the file, or jsonl."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Write only N documents.")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="SHARE",
    help="Write this share of the documents, chosen by a hash of the id: a larger share has all of a smaller.",
)
@debug_option
def command(
    corpus: str,
    input: tuple[str, ...],
    text_field: str,
    output: str,
    kind: str | None,
    limit: int | None,
    sample: float,
) -> None:
    """Write documents as JSONL or plain text.

    For tools that do not read Parquet. They are those of the last stage of the corpus that wrote documents. In a .txt
    file, a line <|endoftext|> separates the texts.

    \b
    Examples:
      webtext export-text --corpus my-corpus -o corpus.jsonl.zst
      webtext export-text --corpus my-corpus --sample 0.01 -o sample.txt
      webtext export-text --corpus my-corpus --limit 10 | jq .title
    """
    from pipelines.corpus.export import export_text, last_documents

    documents = with_standard_input(input) or [last_documents(corpus)]
    written = export_text(documents, output, kind, sample, limit, text_field, make_progress().note)
    click.echo(f"{written:,} documents written", err=True)
    sys.stdout.flush()
