"""`webtext overlap-report`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.core.errors import UsageError
from pipelines.stages.overlap_report.config import OverlapReportConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_files, config_options, config_path, stage_config, stage_options


def _list_benchmarks(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from webtext_cli.tables.benchmark import print_known_benchmarks

    print_known_benchmarks()
    context.exit()


@click.command("overlap-report")
@click.option(
    "--benchmark",
    "benchmarks",
    metavar="NAME=PATH",
    multiple=True,
    help="A benchmark: Parquet, JSONL or .txt; NAME:FIELD=PATH names its field [default: text], NAME/SPLIT=PATH its "
    "split, NAME:train=PATH its train split; or the NAME of one that --list-benchmarks shows (repeatable).",
)
@click.option("--index", metavar="DIR", help="Ask the Bloom filter of overlap-index, not the documents.")
@click.option(
    "--scores",
    metavar="NAME=PATH",
    multiple=True,
    help="A model's scores on a benchmark, a record an example: JSONL, Parquet or CSV (repeatable).",
)
@click.option("--samples", metavar="PATH", help="Texts that a model generated: also show how they overlap.")
@click.option(
    "--list-benchmarks",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_benchmarks,
    help="List the benchmarks that are known by name, and exit.",
)
@config_options(OverlapReportConfig)
@stage_options("Documents: a stage's folder, Parquet, JSONL or .txt")
def command(
    shared: Shared,
    benchmarks: tuple[str, ...],
    index: str | None,
    scores: tuple[str, ...],
    samples: str | None,
    **given: Any,
) -> None:
    """Report which 8-grams of a benchmark occur in the corpus.

    Exact, as it reads the whole corpus. report.html shows the longest passages and where they are, hits.parquet lists
    every one. In webtext.toml: [overlap-report] benchmark = { NAME = "PATH" }.

    \b
    Example:
      webtext overlap-report --corpus my-corpus --benchmark wikitext-2=wiki.test.txt --sensitivity --self-test
      webtext overlap-report -i docs.parquet -o report --benchmark gsm8k/test:question=gsm8k.jsonl
    """
    from pipelines.core import storage
    from pipelines.stages.overlap_report.layout import REPORT
    from pipelines.stages.overlap_report.stage import overlap_report

    if index is None and not shared.input:
        index = config_path(shared.corpus, "overlap-report", "index")
    if index is not None and shared.input:
        raise UsageError("--index and --input exclude each other: the index stands for the documents")
    output = shared.stage_output("overlap-report")
    summary = overlap_report(
        stage_config(OverlapReportConfig, "overlap-report", shared.corpus, given),
        documents=None if index is not None else shared.input_or("remove-wikipedia"),
        benchmarks=benchmarks or config_files(shared.corpus, "overlap-report"),
        output=output,
        options=shared.run_options(),
        index=index,
        scores=scores,
        samples=samples or config_path(shared.corpus, "overlap-report", "samples"),
    )
    if not shared.as_json:
        from webtext_cli.tables.overlap import print_overlap

        print_overlap(storage.read_json(storage.join(output, REPORT)))
    print_summary(summary, shared.as_json)
