"""`webtext remove-wikipedia`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import CorpusConfig
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from webtext_cli.console import print_summary
from webtext_cli.options import DOCUMENTS_HELP, Shared, check_disjoint, config_options, stage_config, stage_options


@click.command("remove-wikipedia")
@click.option(
    "--reference",
    metavar="PATH",
    multiple=True,
    help="Wikipedia's articles: a dump (enwiki-*-pages-articles.xml.bz2, multistream or not), Parquet, JSONL or .txt. "
    "Documents that copy them are dropped (repeatable; may be a glob).",
)
@click.option(
    "--reference-index",
    metavar="DIR",
    help="Output folder of an earlier run with --reference: use its index instead of reading the reference again.",
)
@config_options(RemoveWikipediaConfig)
@stage_options(DOCUMENTS_HELP)
def command(shared: Shared, reference: tuple[str, ...], reference_index: str | None, **flags: Any) -> None:
    """Remove the documents of Wikipedia and its mirrors.

    The paper removes Wikipedia, since many benchmarks consist of its text. A document is dropped if the registered
    domain of its URL is in data/wikipedia-domains.txt or given by --domain. With --reference, a document is also
    dropped if it copies an article; without, if its text has the notices of a mirror. dropped-*.parquet lists the
    dropped documents with the evidence.

    \b
    Examples:
      webtext remove-wikipedia --corpus my-corpus
      webtext remove-wikipedia -i docs.parquet -o clean --domain my-mirror.example
      webtext remove-wikipedia -i january.parquet -o january --reference enwiki-pages-articles-multistream.xml.bz2
      webtext remove-wikipedia -i february.parquet -o february --reference-index january
    """
    from pipelines.stages.remove_wikipedia.stage import remove_wikipedia

    config = stage_config(RemoveWikipediaConfig, "remove-wikipedia", shared.corpus, flags)
    corpus, output = CorpusConfig(shared.corpus), shared.stage_output("remove-wikipedia")
    if not reference and not reference_index and not shared.input:
        reference = tuple(corpus.files("remove-wikipedia"))
        reference_index = corpus.paths("remove-wikipedia").get("reference_index")
    check_disjoint(output, [*reference, *([reference_index] if reference_index else [])])
    summary = remove_wikipedia(
        config,
        documents=shared.input_of("remove-wikipedia"),
        output=output,
        options=shared.run_options(),
        reference=reference,
        reference_index=reference_index,
    )
    print_summary(summary, shared.as_json)
