"""`webtext show`."""

from __future__ import annotations

import click

from webtext_cli.options import corpus_option, debug_option


@click.command("show")
@click.argument("documents", nargs=-1, metavar="[URL_OR_ID]...")
@corpus_option
@click.option("--random", "-n", type=click.IntRange(1), metavar="N", help="Show N documents, chosen at random.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of --random: another seed, other documents.")
@click.option("--domain", metavar="NAME", help="Only documents of this registered domain.")
@click.option("--where", metavar="SQL", help='Only documents that meet a condition on their columns: "words > 5000".')
@click.option("--dropped", metavar="REASON", help="Documents that a stage dropped for this reason, with their text.")
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True, help="Without --random: the first N.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per document.")
@debug_option
def command(
    documents: tuple[str, ...],
    corpus: str,
    random: int | None,
    seed: int,
    domain: str | None,
    where: str | None,
    dropped: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Print documents of a corpus as readable text.

    They are those of the last stage that wrote documents. A document that a stage dropped is shown as that stage read
    it; the stages before extract have no text.

    \b
    Examples:
      webtext show --random 3 --corpus my-corpus
      webtext show https://example.com/page --corpus my-corpus
      webtext show --dropped near_duplicate --random 5 --seed 7
      webtext show --domain nytimes.com --where "words > 5000" --limit 2
    """
    from pipelines.corpus.documents import choose_documents
    from pipelines.corpus.tables import CorpusTables
    from pipelines.errors import UsageError
    from webtext_cli.tables.corpus import print_documents

    if documents and (random or domain or where or dropped):
        raise UsageError("documents by name and --random, --domain, --where, --dropped exclude each other")
    shown = choose_documents(
        CorpusTables(corpus),
        documents,
        domain=domain,
        where=where,
        reason=dropped,
        seed=seed if random else None,
        limit=random or limit,
    )
    print_documents(shown, as_json)
