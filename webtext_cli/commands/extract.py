"""`webtext extract`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.core import storage
from pipelines.stages.extract.config import ExtractConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("extract")
@config_options(ExtractConfig)
@click.option("--links", metavar="DIR", help="The links of the pages given by --input: a folder of `webtext scrape`.")
@stage_options("Pages: a folder of `webtext fetch`, WARC files, or .html files")
def command(shared: Shared, links: str | None, **given: Any) -> None:
    """Extract the main text of the pages.

    Every page runs in a process that is ended when it takes too long or too much memory; dropped-*.parquet names each
    page without text, and why.

    \b
    Example:
      webtext extract --corpus my-corpus
      webtext extract -i saved-pages/ -o documents --extractor newspaper --language en
    """
    from pipelines.stages.extract.stage import extract

    config = stage_config(ExtractConfig, "extract", shared.corpus, given)
    summary = extract(
        config,
        pages=shared.input_or("fetch"),
        links=links or _links_of_corpus(shared),
        output=shared.stage_output("extract"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)


def _links_of_corpus(shared: Shared) -> str | None:
    """Return the corpus's links, unless the pages come from elsewhere or the corpus began with a fetch of its own.

    Links that are missing or unfinished are for the stage to refuse: without them, documents would lose their scores.
    """
    from pipelines.stages.extract.stage import reads_scrape

    folder = shared.stage_input("scrape")
    if shared.input or not (storage.list_folder(folder) or reads_scrape(shared.stage_input("fetch"))):
        return None
    return folder
