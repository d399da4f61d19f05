"""`webtext extract`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines import storage
from pipelines.format import format_decimal, plural
from webtext_cli.console import print_result, print_table, say, shorten
from webtext_cli.options import StageCall, stage_command

_TEXT_CHARACTERS, _FEATURES = 60, 2
_LEGEND = "p: probability that the block is main content; log odds: +2.0 multiplies p / (1 - p) by 7.4, -2.0 divides it"
_REPEATS = "repeats: dropped, because another block with the same text is kept"


@stage_command("extract", "Pages: a folder of `webtext fetch`, WARC files, .html files, or globs")
@click.option("--links", metavar="DIR", help="Folder of `webtext scrape` with the links of the pages in --input.")
@click.option(
    "--explain",
    metavar="FILE|URL_OR_ID",
    help="Show what this stage does with one HTML file, or one page of --input: which blocks it keeps, and why; "
    "write nothing. Requires --extractor fast.",
)
def command(call: StageCall, links: str | None, explain: str | None) -> None:
    """Extract the main text of the pages.

    Pages are extracted in child processes, which are killed if they exceed the timeout or memory limit.
    dropped-*.parquet lists the pages without text, with the reason.

    \b
    Examples:
      webtext extract --corpus my-corpus
      webtext extract saved-pages/ -o documents --declared-language en
      webtext extract --explain saved-pages/a.html
      webtext extract --explain https://example.com/page --corpus my-corpus
    """
    if explain is None:
        call.run(links=links or _links_of_corpus(call))
        return
    from pipelines.stages.extract.explain import explain as explain_page
    from pipelines.stages.extract.explain import is_file

    pages = list(call.input) if is_file(explain) else call.input_files()
    print_result(explain_page(call.config(), explain, pages=pages), call.as_json, _print_explanation)


def _links_of_corpus(call: StageCall) -> str | None:
    """Return the corpus's links, unless the pages are from elsewhere or were fetched from a list of URLs.

    The stage refuses links that are missing or unfinished: without them, documents would lose their scores.
    """
    from pipelines.stages.extract.stage import reads_scrape

    folder, pages = (storage.join(call.corpus, stage) for stage in ("scrape", "fetch"))
    has_no_links = call.input or call.settings.sources("extract")["links"] is None
    return None if has_no_links or not (storage.list_folder(folder) or reads_scrape(pages)) else folder


def _print_explanation(explanation: Mapping[str, Any]) -> None:
    if explanation["blocks"]:
        headings = ["block", "tag", "words", "kept", "p", "main features (log odds)"]
        print_table(headings, [_row(block) for block in explanation["blocks"]], narrow=True)
        say(_LEGEND)
        if any(block["is_repetition"] for block in explanation["blocks"]):
            say(_REPEATS)
        say("")
    detail = f" ({explanation['detail']})" if explanation["detail"] else ""
    kept = f"kept, {plural(explanation['words'], 'word')}"
    say(f"page        {explanation['url'] or explanation['id']}")
    say(f"title       {explanation['title'] or 'none'}")
    say(f"type        {explanation['page_type'] or 'not detected'}")
    say(f"confidence  {format_decimal(explanation['confidence'])} (estimated F1 of the text; 1.00 is perfect)")
    reason = explanation["reason"]
    say(f"outcome     {f'dropped as {reason}{detail}' if reason else kept}")
    if reason is None:
        say(f"\n{explanation['text']}")


def _row(block: Mapping[str, Any]) -> list[str]:
    return [
        shorten(" ".join(block["text"].split()), _TEXT_CHARACTERS),
        block["tag"],
        f"{block['words']:,}",
        "yes" if block["is_kept"] else "repeats" if block["is_repetition"] else "–",
        f"{block['probability']:.2f}",
        ", ".join(f"{group} {change:+.1f}" for group, change in [*block["moved_by"].items()][:_FEATURES]),
    ]
