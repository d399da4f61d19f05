"""`webtext overlap-report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pipelines.core.errors import UsageError
from pipelines.stages.overlap_report.config import OverlapReportConfig
from webtext_cli.console import print_summary, print_table
from webtext_cli.options import Shared, config_options, named_path, path_list, stage_config, stage_options


@click.command("overlap-report")
@click.option(
    "--benchmark",
    "benchmarks",
    metavar="NAME=PATH",
    multiple=True,
    help="A benchmark: Parquet, JSONL or .txt; NAME/SPLIT=PATH names its split, NAME:FIELD=PATH its field "
    "[default: text] (repeatable).",
)
@click.option("--index", metavar="DIR", help="Ask the Bloom filter of overlap-index, not the documents.")
@config_options(OverlapReportConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(shared: Shared, benchmarks: tuple[str, ...], index: str | None, **given: Any) -> None:
    """Report which 8-grams of a benchmark the corpus holds.

    Exact, as it reads the whole corpus. report.html shows the longest passages and where they are, hits.parquet lists
    every one. Benchmarks may stand in webtext.toml: [overlap-report] benchmarks = ["NAME=PATH"].

    \b
    Example:
      webtext overlap-report --corpus my-corpus --benchmark wikitext2=wiki.test.txt
      webtext overlap-report -i docs.parquet -o report --benchmark gsm8k/test:question=gsm8k.jsonl
    """
    from pipelines.stages.overlap_report.stage import overlap_report

    if index is None and not shared.input:
        index = named_path(shared.corpus, "overlap-report", "index")
    if index is not None and shared.input:
        raise UsageError("--index and --input exclude each other: the index stands for the documents")
    summary = overlap_report(
        stage_config(OverlapReportConfig, "overlap-report", shared.corpus, given),
        documents=None if index is not None else shared.input_or("remove-wikipedia"),
        benchmarks=benchmarks or path_list(shared.corpus, "overlap-report"),
        output=shared.stage_output("overlap-report"),
        options=shared.run_options(),
        index=index,
    )
    if shared.as_json:
        print_summary(summary, as_json=True)
        return
    figures = dict(summary.extra)
    _print_benchmarks(figures.pop("benchmarks"))
    print_summary(dataclasses.replace(summary, extra=figures), as_json=False)


def _print_benchmarks(rows: Sequence[Mapping[str, Any]]) -> None:
    headings = ["benchmark", "n-grams", "overlapping", "% positions", "% distinct"]
    headings += ["examples", "any", ">= 15%", ">= 50%", "too short"]
    print_table(headings, [_shown(row) for row in rows], title="Overlap with the corpus")


def _shown(row: Mapping[str, Any]) -> list[str]:
    label = row["name"] if row["split"] is None else f"{row['name']}/{row['split']}"
    shares = [f"{row[key]:.2f}" for key in ("percent_positions", "percent_distinct")]
    examples = [f"{row[key]:,}" for key in ("examples", "examples_any", "examples_15", "examples_50", "too_short")]
    return [label, f"{row['ngrams']:,}", f"{row['overlapping']:,}", *shares, *examples]
