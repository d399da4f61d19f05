"""`webtext remove-wikipedia`."""

from __future__ import annotations

import click

from webtext_cli.options import DOCUMENTS_HELP, StageCall, stage_command


@stage_command("remove-wikipedia", DOCUMENTS_HELP)
@click.option(
    "--reference",
    metavar="PATH",
    multiple=True,
    help="Wikipedia's articles: a dump (enwiki-*-pages-articles.xml.bz2, multistream or not), Parquet, JSONL or .txt. "
    "Documents that copy them are dropped; globs allowed.",
)
@click.option(
    "--reference-index",
    metavar="DIR",
    help="Output folder of an earlier run with --reference: use its index instead of reading the reference again.",
)
def command(call: StageCall, reference: tuple[str, ...], reference_index: str | None) -> None:
    """Remove the documents of Wikipedia and its mirrors.

    The paper removes Wikipedia, since many benchmarks consist of its text. A document is dropped if the registered
    domain of its URL is in data/wikipedia-domains.txt or given by --extra-domain. With --reference, a document is also
    dropped if it copies an article; without, if its text has the notices of a mirror. dropped-*.parquet lists the
    dropped documents with the evidence.

    \b
    Examples:
      webtext remove-wikipedia --corpus my-corpus
      webtext remove-wikipedia docs.parquet -o clean --extra-domain mirror.example
      webtext remove-wikipedia jan.parquet -o jan --reference enwiki.xml.bz2
      webtext remove-wikipedia feb.parquet -o feb --reference-index jan
    """
    files = {"reference": reference, "reference_index": reference_index}
    call.run(**(files if reference or reference_index or call.input else call.configured(**files)))
