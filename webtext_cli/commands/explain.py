"""`webtext explain`."""

from __future__ import annotations

import click

from webtext_cli.options import corpus_option, debug_option, json_option


@click.command("explain")
@click.argument("document", metavar="URL_OR_ID")
@corpus_option
@json_option
@debug_option
def command(document: str, corpus: str, as_json: bool) -> int:
    """Show what every stage made of a document, or why it is missing.

    From the link and its submissions to the position in the token shards: whatever the finished stages recorded. The
    exit code is 1 if the corpus does not have the document.

    \b
    Examples:
      webtext explain https://example.com/page --corpus my-corpus
      webtext explain 9fc5847bfde8303e8edaae501346eaac --corpus my-corpus --json
    """
    from pipelines.corpus.explain import explain
    from pipelines.corpus.tables import CorpusTables
    from webtext_cli.tables.corpus import print_history

    history = explain(CorpusTables(corpus), document)
    print_history(history, as_json)
    return 0 if history.is_present else 1
