"""`webtext browse`."""

from __future__ import annotations

import webbrowser
from typing import Any

import click

from pipelines.engine.run import RunOptions
from pipelines.extras import require_extra
from pipelines.records.document_options import DocumentConfig
from webtext_cli.console import make_progress, say
from webtext_cli.options import (
    DOCUMENTS_HELP,
    config_of_flags,
    config_options,
    corpus_option,
    input_option,
    inputs_or_corpus,
)
from webtext_cli.parameters import Command, Number


@click.command("browse", cls=Command)
@corpus_option
@input_option(DOCUMENTS_HELP)
@config_options(DocumentConfig)
@click.option("--port", type=Number(int, 0, 65535), default=8765, show_default=True, help="Port; 0 chooses a free one.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Others than this machine's own need the token in the printed URL, over plain HTTP.",
)
@click.option("--no-open", is_flag=True, help="Print the URL, and do not open it in a web browser.")
def command(corpus: str, input: tuple[str, ...], port: int, host: str, no_open: bool, **flags: Any) -> None:
    """Browse a corpus in a web browser.

    Shows the stages and their progress, documents with filters, one document with its way through all stages, what was
    dropped and why, domains, clusters, the tokenizer and the model. Serves this machine only, until Ctrl-C.

    \b
    Examples:
      webtext browse --corpus my-corpus
      webtext browse -i docs.jsonl.zst --port 0 --no-open
    """
    require_extra("browse", "browse", "starlette", "uvicorn")
    from pipelines.browse.app import serve
    from pipelines.browse.site import Site

    def announce(url: str) -> None:
        say(f"{url}\npress Ctrl-C to stop")
        if not no_open:
            webbrowser.open(url)

    source = inputs_or_corpus(input, corpus)
    options = RunOptions(progress=make_progress(quiet=True))
    serve(Site(source, config_of_flags(DocumentConfig, flags), options), host, port, announce)
