"""`webtext stats`."""

from __future__ import annotations

import click

from pipelines import storage
from webtext_cli.console import say
from webtext_cli.options import corpus_option, debug_option, json_option


@click.command("stats")
@corpus_option
@click.option(
    "--by",
    multiple=True,
    metavar="NAME",
    help="domain, language, year (of submission), subreddit, length, or any column of the documents (repeatable; "
    "default: those five of which something is known).",
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Largest groups to show.")
@click.option("--html", metavar="FILE", help="Also write the tables as a page.")
@json_option
@debug_option
def command(corpus: str, by: tuple[str, ...], limit: int, html: str | None, as_json: bool) -> None:
    """Count the documents, words and bytes of a corpus.

    They are those of the last stage that wrote documents. A document counts once for each of its subreddits.

    \b
    Examples:
      webtext stats --corpus my-corpus
      webtext stats --corpus my-corpus --by domain --limit 100 --json
      webtext stats --corpus my-corpus --html stats.html
    """
    from pipelines.corpus.statistics import count_documents, group_name
    from pipelines.corpus.tables import CorpusTables
    from webtext_cli.tables.corpus import print_statistics

    tables = CorpusTables(corpus)
    statistics = count_documents(tables, by, limit)
    if html:
        from pipelines.reports.statistics import render_statistics

        groups = {
            kind: [(group_name(kind, row["value"]), row) for row in rows] for kind, rows in statistics["groups"].items()
        }
        page = render_statistics(statistics["total"], groups, statistics["sizes"])
        storage.write_bytes(html, page.encode())
    print_statistics(statistics, as_json)
    if html and not as_json:
        say(f"page: {html}")
