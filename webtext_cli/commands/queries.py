"""`webtext explain`, `show`, `stats`, `sql` and `export-text`: what a corpus contains."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.format import describe_field, format_bytes, format_count, format_percent, plural, to_json
from pipelines.records.document_options import DocumentConfig
from webtext_cli.console import complain, make_progress, print_result, print_table, say, shorten
from webtext_cli.options import (
    DOCUMENTS_HELP,
    check_disjoint,
    config_of_flags,
    config_options,
    corpus_option,
    input_option,
    inputs_or_corpus,
    output_options,
)
from webtext_cli.parameters import Choice, Command, Number

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.corpus.explain import History
    from pipelines.corpus.tables import CorpusTables

_INDENT = "  "
_MAX_TABLE_ROWS = 200
_MAX_CELL = 80
# How a dropped or absent document reads.
_OUTCOMES = {"kept": "kept", "dropped": "DROPPED, ", "absent": "not found: "}
_allow_files_option = click.option(
    "--allow-files", is_flag=True, help="Let the SQL read any local file, as in FROM 'scores.csv'; it never writes."
)


def _table_options(is_argument: bool = False) -> Callable[[Any], Any]:
    """Add the options that name a corpus or other documents, and pass their tables to the command."""

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def wrapper(corpus: str, input: tuple[str, ...], quiet: bool, **values: Any) -> Any:
            from pipelines.corpus.tables import CorpusTables

            flags = {field.name: values.pop(field.name) for field in dataclasses.fields(DocumentConfig)}
            source, options = inputs_or_corpus(input, corpus), RunOptions(progress=make_progress(quiet))
            allow_files = values.pop("allow_files", False)
            tables = CorpusTables(source, config_of_flags(DocumentConfig, flags), options, allow_files)
            return command(tables=tables, **values)

        return corpus_option(input_option(DOCUMENTS_HELP, is_argument)(config_options(DocumentConfig)(wrapper)))

    return decorate


@click.command("explain", cls=Command)
@click.argument("target", metavar="URL_OR_ID")
@_table_options()
@output_options()
def explain(target: str, tables: CorpusTables, as_json: bool) -> int:
    """Trace a document through every stage, or see why it is missing.

    From the link and its submissions to the position in the token shards. Shows what each finished stage recorded.
    Exits with 1 if the document is not in the corpus.

    \b
    Examples:
      webtext explain https://example.com/page --corpus my-corpus
      webtext explain 9fc5847bfde8303e8edaae501346eaac --corpus my-corpus --json
    """
    from pipelines.corpus.explain import explain as explain_document

    history = explain_document(tables, target)
    result = dataclasses.asdict(history) | {"is_present": history.is_present}
    print_result(result, as_json, lambda _: _print_history(history))
    return 0 if history.is_present else 1


@click.command("show", cls=Command)
@click.argument("documents", nargs=-1, metavar="[URL_OR_ID]...")
@_table_options()
@click.option("--random", type=Number(int, 1), metavar="N", help="Show N random documents.")
@click.option("--seed", type=Number(int), show_default="0", help="Random seed for --random.")
@click.option("--where", metavar="SQL", help='Only documents matching an SQL condition: "words > 5000".')
@_allow_files_option
@click.option("--dropped", metavar="REASON", help="Documents that a stage dropped for this reason, with their text.")
@click.option(
    "--limit", "-n", type=Number(int, 1), show_default="10, or that of --random", help="Maximum number of documents."
)
@output_options("Print one JSON object per document.")
def show(
    documents: tuple[str, ...],
    tables: CorpusTables,
    random: int | None,
    seed: int | None,
    where: str | None,
    dropped: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print documents of a corpus as readable text.

    Reads the output of the latest document stage. Dropped documents are shown as they were before the stage that
    dropped them. Pages dropped before extraction have no text.

    \b
    Examples:
      webtext show --random 3 --corpus my-corpus
      webtext show https://example.com/page --corpus my-corpus
      webtext show --random 3 -i docs.jsonl.zst
      webtext show --dropped near_duplicate --random 5 --seed 7
      webtext show --where "domain = 'nytimes.com' AND words > 5000" --limit 2
    """
    from pipelines.corpus.documents import choose_documents

    if seed is not None and not random:
        raise UsageError("--seed has no effect without --random; omit it")
    conditions = {"--random": random, "--where": where, "--dropped": dropped}
    if documents and (used := ", ".join(name for name, value in conditions.items() if value)):
        raise UsageError(f"{documents[0]}: a URL or id cannot be combined with {used}")
    chosen = choose_documents(
        tables,
        documents,
        where=where,
        reason=dropped,
        seed=(seed or 0) if random else None,
        limit=min(random or limit or 10, limit or random or 10),
    )
    for number, document in enumerate(chosen):
        if number and not as_json:
            say("\n" + "─" * 40 + "\n")
        print_result(document, as_json, _print_document)


@click.command("stats", cls=Command)
@_table_options(is_argument=True)
@click.option(
    "--by",
    multiple=True,
    metavar="NAME",
    help="domain, language, year (of submission), subreddit, length, or any column of the documents. "
    "[default: whichever of the first five are available]",
)
@click.option("--limit", "-n", type=Number(int, 1), default=20, show_default=True, help="Number of groups to show.")
@output_options()
def stats(tables: CorpusTables, by: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Count the documents, words and bytes of a corpus.

    Reads the output of the latest document stage. A document counts once for each of its subreddits.

    \b
    Examples:
      webtext stats --corpus my-corpus
      webtext stats --corpus my-corpus --by domain --limit 100 --json
      webtext stats docs.jsonl.zst
    """
    from pipelines.corpus.statistics import count_documents

    print_result(count_documents(tables, by, limit), as_json, _print_statistics)


@click.command("sql", cls=Command)
@click.argument("query")
@_table_options()
@click.option(
    "--format",
    "kind",
    type=Choice(["table", "csv", "jsonl"]),
    default="table",
    show_default=True,
    help="Output format; a table shows at most 200 rows, and 80 characters per cell.",
)
@_allow_files_option
@output_options("Print one JSON object per row, as --format jsonl does.")
def sql(query: str, tables: CorpusTables, kind: str, as_json: bool) -> None:
    """Query the files of a corpus with SQL (DuckDB).

    The tables are links, pages, documents, dropped (with a column stage), clusters and tokens; extract_documents,
    filter_documents, dedup_documents and remove_wikipedia_documents are the documents of one stage. docs/formats.md
    lists the columns. A query changes nothing, and reads only these tables.

    \b
    Examples:
      webtext sql "SELECT domain, count(*) FROM documents GROUP BY ALL"
      webtext sql "SELECT url FROM dropped" --corpus my-corpus --format csv
      webtext sql "DESCRIBE documents"
    """
    batches = tables.select(query)
    if kind == "csv" and not as_json:
        _write_csv(batches)
    elif as_json or kind == "jsonl":
        for batch in batches:
            for row in batch.to_pylist():
                say(to_json(row))
    else:
        _print_rows(batches)


@click.command("export-text", cls=Command)
@corpus_option
@input_option(DOCUMENTS_HELP)
@config_options(DocumentConfig)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    default="-",
    help="Output file, .jsonl or .txt, also .gz or .zst. [default: standard output]",
)
@click.option(
    "--format", "kind", type=Choice(["jsonl", "txt"]), help="Output format. [default: by file extension, else jsonl]"
)
@click.option("--limit", "-n", type=Number(int, 1), metavar="N", help="Maximum number of documents.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@output_options("Print the number of documents as one JSON object; without --output, on standard error.")
def export_text(
    corpus: str,
    input: tuple[str, ...],
    output: str,
    kind: str | None,
    limit: int | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Write documents as JSONL or plain text.

    For tools that do not read Parquet. Reads the output of the latest document stage. In a .txt file, a line
    <|endoftext|> separates the texts.

    \b
    Examples:
      webtext export-text --corpus my-corpus -o corpus.jsonl.zst
      webtext export-text --corpus my-corpus -o corpus.txt
      webtext export-text --corpus my-corpus --limit 10 | jq .title
    """
    from pipelines.corpus.export import export_text as write_text
    from pipelines.corpus.export import last_documents

    source = inputs_or_corpus(input, corpus)
    documents = [last_documents(source)] if isinstance(source, str) else source
    check_disjoint(output, documents)
    options = RunOptions(overwrite=overwrite, progress=make_progress(quiet))
    written = write_text(documents, output, kind, limit, config_of_flags(DocumentConfig, flags), options)
    report = complain if output == "-" else say
    report(to_json({"documents": written}) if as_json else f"{plural(written, 'document')} written")
    sys.stdout.flush()


def _print_history(history: History) -> None:
    say(f"{history.url or 'no URL'}\nid {history.id}")
    for step in history.steps:
        say(f"\n{step.stage}: {_OUTCOMES[step.outcome]}{step.reason or ''}")
        _print_fields(step.fields)
    if history.similar_urls:
        say("\nsimilar URLs:")
        say("\n".join(f"{_INDENT}{url}" for url in history.similar_urls))
    last = history.steps[-1]
    if history.is_present:
        say(f"\nThe document is in the corpus (last stage: {last.stage}).")
    else:
        problem = "does not have it" if last.outcome == "absent" else "dropped it"
        say(f"\nThe document is missing: {last.stage} {problem}.")


def _print_fields(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is not None and value != []:
            say(f"{_INDENT}{describe_field(name, value)}")


def _print_document(document: Mapping[str, Any]) -> None:
    _print_fields({name: value for name, value in document.items() if name != "text"})
    absent = "(text not available; if an earlier stage wrote it, add its folder with -i)"
    say(f"\n{absent if document['text'] is None else document['text']}")


def _print_statistics(statistics: Mapping[str, Any]) -> None:
    from pipelines.corpus.statistics import group_name

    total = statistics["total"]
    print_table(["", "documents", "words", "bytes"], [["all", *_counts(total)]])
    for kind, groups in statistics["groups"].items():
        rows = [
            [group_name(kind, row["value"]), *_counts(row), format_percent(row["documents"] / total["documents"])]
            for row in groups
        ]
        if statistics["sizes"][kind] > len(groups):
            rows.append([f"and {statistics['sizes'][kind] - len(groups):,} more", "", "", "", ""])
        print_table([kind, "documents", "words", "bytes", "share of documents"], rows)


def _counts(row: Mapping[str, Any]) -> list[str]:
    return [format_count(row["documents"]), format_count(row["words"]), format_bytes(row["bytes"])]


def _write_csv(batches: Iterable[pa.RecordBatch]) -> None:
    for number, batch in enumerate(batches):
        writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
        if not number:
            writer.writerow(batch.schema.names)
        writer.writerows(
            [value if isinstance(value, str | int | float) or value is None else _cell(value) for value in row.values()]
            for row in batch.to_pylist()
        )
        if lines.tell():
            say(lines.getvalue()[:-1])


def _print_rows(batches: Iterable[pa.RecordBatch]) -> None:
    names: list[str] = []
    rows: list[list[str]] = []
    for batch in batches:
        names = batch.schema.names
        cells = (map(_cell, row.values()) for row in batch.slice(0, _MAX_TABLE_ROWS + 1 - len(rows)).to_pylist())
        rows += [[" ".join(cell.split()) for cell in row] for row in cells]
        if len(rows) > _MAX_TABLE_ROWS:
            break
    shown = [[shorten(cell, _MAX_CELL) for cell in row] for row in rows[:_MAX_TABLE_ROWS]]
    if names:
        kinds = [str(kind).startswith(("int", "uint", "float", "double", "decimal")) for kind in batch.schema.types]
        print_table(names, shown, is_number=kinds)
    if shown != rows:
        say(f"at most {_MAX_TABLE_ROWS} rows, and {_MAX_CELL} characters of a cell; --format csv and jsonl print all")


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else to_json(value).strip('"')
