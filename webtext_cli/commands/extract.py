"""`webtext extract`."""

from __future__ import annotations

from typing import Any

import click

from pipelines import storage
from pipelines.build import CorpusConfig
from pipelines.stages.extract.config import ExtractConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("extract")
@config_options(ExtractConfig)
@click.option("--links", metavar="DIR", help="Folder of `webtext scrape` with the links of the pages in --input.")
@click.option(
    "--explain",
    metavar="FILE_OR_URL",
    help="Show the blocks of an HTML file, or of the page with this URL or id in --input: which are kept, their "
    "probability, and the features that moved it most; write nothing. Only for fast.",
)
@stage_options("Pages: a folder of `webtext fetch`, WARC files, or .html files")
def command(shared: Shared, links: str | None, explain: str | None, **flags: Any) -> None:
    """Extract the main text of the pages.

    Every page is extracted in a process that is killed if it exceeds the timeout or the memory limit; dropped-*.parquet
    lists the pages without text, with the reason.

    \b
    Examples:
      webtext extract --corpus my-corpus
      webtext extract -i saved-pages/ -o documents --language en
      webtext extract --explain saved-pages/a.html
      webtext extract --explain https://example.com/page --corpus my-corpus
    """
    config = stage_config(ExtractConfig, "extract", shared.corpus, flags)
    if explain is not None:
        from pipelines.stages.extract import explain as explanation
        from webtext_cli.tables.documents import print_extraction

        pages = list(shared.input) if explanation.is_file(explain) else shared.input_of("extract")
        print_extraction(explanation.explain(config, explain, pages=pages), shared.as_json)
        return
    from pipelines.stages.extract.stage import extract

    summary = extract(
        config,
        pages=shared.input_of("extract"),
        links=links or _links_of_corpus(shared),
        output=shared.stage_output("extract"),
        options=shared.run_options(),
    )
    print_summary(summary, shared.as_json)


def _links_of_corpus(shared: Shared) -> str | None:
    """Return the corpus's links, unless the pages are from elsewhere or were fetched from a list of URLs.

    The stage refuses links that are missing or unfinished: without them, documents would lose their scores.
    """
    from pipelines.stages.extract.stage import reads_scrape

    folder = shared.stage_input("scrape")
    has_no_links = shared.input or CorpusConfig(shared.corpus).sources("extract")["links"] is None
    if has_no_links or not (storage.list_folder(folder) or reads_scrape(shared.stage_input("fetch"))):
        return None
    return folder
