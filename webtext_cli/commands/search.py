"""`webtext search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipelines import storage
from pipelines.engine.config import flag_of
from pipelines.errors import UsageError
from pipelines.format import plural
from webtext_cli.console import complain, print_result, say, say_marked, shorten
from webtext_cli.options import DOCUMENTS_HELP, StageCall, input_option, stage_command, with_standard_input
from webtext_cli.parameters import Number

if TYPE_CHECKING:
    from pipelines.search.query import Matches, SearchIndex
    from pipelines.search.trace import Passage

# Characters of a title and of a passage on the terminal.
_TITLE, _PASSAGE = 80, 300


@stage_command("search")
@click.argument("query", required=False)
@click.option("--build", "is_build", is_flag=True, help="Build the index, or update it; needs no query.")
@click.option("--exact", "is_exact", is_flag=True, help="Find the words of QUERY in a row, in all documents; no index.")
@click.option("--trace", "traced", metavar="FILE", help="Find the longest passages of a text; - is standard input.")
@click.option("--limit", "-n", type=Number(int, 1), default=10, show_default=True, help="Maximum number of results.")
@input_option(DOCUMENTS_HELP, is_argument=False)
def command(
    call: StageCall, query: str | None, is_build: bool, is_exact: bool, traced: str | None, limit: int
) -> None:  # fmt: skip
    """Search the texts of a corpus, or trace the passages of a text to its documents.

    All words of QUERY must occur; double quotes enclose a phrase. OR, NOT (-) and brackets combine words, FIELD:VALUE
    looks in one of the fields text, title, url, domain, language, subreddit, year and words. Build the index first.

    \b
    Examples:
      webtext search --build --corpus my-corpus
      webtext search '"neural network" NOT training' --corpus my-corpus
      webtext search 'title:history domain:bbc.co.uk year:[2008 TO 2010]'
      webtext search --trace answer.txt --corpus my-corpus
      webtext search --exact "to be or not to be" -i docs.parquet
    """
    modes = {"--build": is_build, "--exact": is_exact, "--trace": traced, "QUERY": query and not is_exact}
    named = [flag for flag, value in modes.items() if value]
    if len(named) != 1 or (is_exact and not query):
        problem = f"{' and '.join(named)} cannot be combined" if len(named) > 1 else "no QUERY"
        raise UsageError(f"{problem}; name a query, or one of --build, --trace FILE and --exact QUERY")
    options = {"output": call.output, "input": call.input}
    allowed = {"--build": ["output", "input"], "--exact": ["input"]}.get(named[0], [])
    if unused := next((name for name, value in options.items() if value and name not in allowed), None):
        raise UsageError(f"{flag_of(unused)} has no effect with {named[0]}; omit it")
    if is_build:
        call.run()
    elif query and is_exact:
        from pipelines.search.exact import search_exactly

        matches = search_exactly(call.input_files(), call.config(), query, call.run_options(), limit=limit)
        print_result(matches, call.as_json, _print_matches)
    elif query:
        print_result(_open_index(call).search(query, limit=limit), call.as_json, _print_matches)
    elif traced:
        from pipelines.search.trace import trace

        index, [path] = _open_index(call), with_standard_input([traced], call.quiet)
        text = storage.read_bytes(path).decode(errors="replace")
        print_result(trace(index, text, limit=limit).passages, call.as_json, _print_passages)


def _open_index(call: StageCall) -> SearchIndex:
    from pipelines.search.query import SearchIndex

    index = SearchIndex.open(call.corpus)
    if index.is_stale:
        complain("note: the documents have changed since the index was built; `webtext search --build` updates it")
    return index


def _print_matches(matches: Matches) -> None:
    for row in matches.rows:
        say_marked([(row.url or row.id, True), (f"  {shorten(row.title, _TITLE)}" if row.title else "", False)])
        say_marked([("  ", False), *row.snippet])
    shown = f", the first {len(matches.rows)} shown" if matches.count > len(matches.rows) else ""
    say(f"{plural(matches.count, 'document')}{shown}")


def _print_passages(passages: Sequence[Passage]) -> None:
    for passage in passages:
        text = shorten(" ".join(passage.text.split()), _PASSAGE)
        where = f"characters {passage.start:,} to {passage.end:,}"
        say_marked([(f"{plural(passage.words, 'word')}, {where}, in {plural(passage.count, 'document')}", True)])
        say_marked([(f"  {text}", False)])
        for document in passage.documents:
            say_marked([(f"    {document['url'] or document['id']} at {document['start']:,}", False)])
    say(plural(len(passages), "passage"))
