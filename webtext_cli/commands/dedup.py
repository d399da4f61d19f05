"""`webtext dedup`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines.errors import UsageError, WebtextError
from pipelines.format import format_count, format_decimal, format_percent, plural
from webtext_cli.console import print_result, print_table, say, say_wrapped
from webtext_cli.options import DOCUMENTS_HELP, StageCall, stage_command
from webtext_cli.parameters import Number


@stage_command("dedup", DOCUMENTS_HELP)
@click.option(
    "--self-test",
    is_flag=True,
    help="Measure recall: insert altered copies of a sample of the documents, and print how many are found; write "
    "nothing.",
)
@click.option(
    "--sample", type=Number(int, 1, 100_000), help="Number of documents to copy for --self-test. [default: 1,000]"
)
def command(call: StageCall, self_test: bool, sample: int | None) -> None:
    """Remove duplicate and near-duplicate documents.

    Exact duplicates are equal after normalization; near-duplicates share most of their shingles, runs of --ngram words.
    MinHash finds candidate pairs, which are verified by their Jaccard similarity. A document is dropped if a duplicate
    with a higher score or in an earlier corpus (--against) is kept; dropped-*.parquet names it, clusters.parquet lists
    all duplicates, and report.html shows pairs side by side.

    \b
    Examples:
      webtext dedup --corpus my-corpus
      webtext dedup docs.jsonl.zst -o unique --threshold 0.7
      webtext dedup 2018-01.parquet -o new-month --against my-corpus/dedup
      webtext dedup docs.jsonl.zst --threshold 0.7 --self-test
    """
    if not self_test:
        if sample is not None:
            raise UsageError("--sample has no effect without --self-test; omit it")
        call.run()
        return
    from pipelines.stages.dedup.self_test import SAMPLE
    from pipelines.stages.dedup.self_test import self_test as measure

    result = measure(call.config(), documents=call.input_files(), options=call.run_options(), sample=sample or SAMPLE)
    print_result(result, call.as_json, _print_self_test)
    if below := result["below_threshold"]:
        dropped = plural(result["dropped"], "dropped document")
        raise WebtextError(
            f"self-test: {below:,} of {dropped} are less similar to the kept one than the threshold; this is a bug in "
            "webtext, please report it"
        )


def _print_self_test(result: Mapping[str, Any]) -> None:
    say_wrapped(
        f"Altered copies of {plural(result['documents'], 'document')} were inserted and deduplicated with "
        f"{result['bands']} bands of {result['rows']} values. A pair is a kept document and its copy."
    )
    rows = [
        [f"{row['from']:.2f} to {row['to']:.2f}", *_recall(row), format_percent(row["predicted"], 2)]
        for row in result["ranges"]
    ]
    print_table(["Jaccard similarity", "pairs", "found", "recall", "S-curve"], rows, title="By similarity")
    rows = [
        [row["kind"], format_count(row["copies"]), format_decimal(row["mean_similarity"]), *_recall(row)]
        for row in result["kinds"]
    ]
    headings = ["copy", "copies", "mean similarity", "pairs", "found", "recall"]
    print_table(headings, rows, title="By kind of copy", narrow=True)
    below = f"{result['below_threshold']:,} of {plural(result['dropped'], 'dropped document')} below the threshold"
    say(f"precision {format_percent(result['precision'], 2)}: {below}")


def _recall(row: Mapping[str, Any]) -> list[str]:
    return [format_count(row["pairs"]), format_count(row["found"]), format_percent(row["recall"], 2)]
