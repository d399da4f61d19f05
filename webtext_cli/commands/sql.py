"""`webtext sql`."""

from __future__ import annotations

import click

from webtext_cli.options import corpus_option, debug_option


@click.command("sql")
@click.argument("query")
@corpus_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
    help="A table has at most 200 rows, and 80 characters of a cell.",
)
@debug_option
def command(query: str, corpus: str, kind: str) -> None:
    """Query the files of a corpus with SQL (DuckDB).

    The tables are links, pages, documents, dropped (with a column stage), clusters and tokens; extract_documents,
    dedup_documents and remove_wikipedia_documents are the documents of one stage. docs/formats.md lists the columns.
    Only queries are allowed: nothing is changed.

    \b
    Examples:
      webtext sql "SELECT domain, count(*) FROM documents GROUP BY ALL ORDER BY 2 DESC LIMIT 10" --corpus my-corpus
      webtext sql "SELECT url FROM dropped WHERE reason = 'http_not_found'" --format csv
      webtext sql "DESCRIBE documents"
    """
    from pipelines.corpus.tables import CorpusTables
    from webtext_cli.tables.corpus import print_query

    print_query(CorpusTables(corpus).select(query), kind)
