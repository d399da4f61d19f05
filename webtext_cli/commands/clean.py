"""`webtext clean`."""

from __future__ import annotations

import click

from pipelines.format import format_bytes
from webtext_cli.console import print_table, say
from webtext_cli.options import corpus_option, debug_option


@click.command("clean")
@corpus_option
@click.option("--stages", is_flag=True, help="Also documents of stages before the last one that wrote documents.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@debug_option
def command(corpus: str, stages: bool, yes: bool, dry_run: bool) -> int:
    """Remove what a corpus no longer needs.

    Unfinished runs and replacements, temporary files of killed runs, and with --stages the documents that a later stage
    has read. Fetched pages, trained models and stages that are running stay. Asks first.

    \b
    Examples:
      webtext clean --corpus my-corpus
      webtext clean --corpus my-corpus --stages --yes
    """
    from pipelines.build import check_corpus
    from pipelines.corpus.clean import find_removable, remove

    check_corpus(corpus)
    removable = find_removable(corpus, stages)
    if not removable:
        say("nothing to remove")
        return 0
    rows = [[item.path, item.what, item.loss, format_bytes(item.size_bytes)] for item in removable]
    print_table(["path", "what it is", "what is lost", "size"], rows)
    total = format_bytes(sum(item.size_bytes for item in removable))
    if dry_run:
        say(f"{total} can be removed")
        return 0
    try:
        if not yes and not click.confirm(f"Remove {total}?"):
            return 1
    except click.Abort:  # there is nobody to ask
        say("nothing removed; --yes removes without asking")
        return 1
    removed = remove(corpus, removable)
    for item in removable:
        if item not in removed:
            say(f"{item.path}: is in use or has changed meanwhile, and stays")
    say(f"{format_bytes(sum(item.size_bytes for item in removed))} removed")
    return 0
