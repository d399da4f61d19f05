"""`webtext train-bpe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines.errors import UsageError
from webtext_cli.console import print_table, say_wrapped, shorten
from webtext_cli.options import DOCUMENTS_HELP, StageCall, stage_command

_NAME_CHARACTERS = 30


@stage_command("train-bpe", DOCUMENTS_HELP)
@click.option(
    "--counts",
    metavar="PATH",
    multiple=True,
    help="Train from word counts instead of documents: folders of this command, or Parquet files with the columns word "
    "and count; several are added up; globs allowed.",
)
@click.option(
    "--compare",
    metavar="PATH",
    help="A tokenizer to compare with in the report, such as GPT-2's own encoder.json and vocab.bpe.",
)
def command(call: StageCall, counts: tuple[str, ...], compare: str | None) -> None:
    """Train a byte-level BPE tokenizer like GPT-2's.

    Writes the tokenizer in every common tokenizer format, the counts of all words (for --counts), and a report. Ids
    follow GPT-2: 256 bytes, the merges, <|endoftext|> last.

    \b
    Examples:
      webtext train-bpe --corpus my-corpus
      webtext train-bpe docs.jsonl.zst -o my-tokenizer --vocab-size 8192
      webtext train-bpe --counts my-tokenizer -o smaller --vocab-size 4096
    """
    if counts and call.input:
        raise UsageError("--input and --counts cannot be combined: counts replace documents")
    # --input replaces the counts of webtext.toml, as counts replace the documents.
    files = call.configured(compare=compare, **({} if call.input else {"counts": counts}))
    summary = call.run(**files, **({"documents": []} if files.get("counts") else {}))
    if not (call.as_json or call.config().count_only):
        from pipelines.stages.train_bpe.stage import read_report

        print_tokenizer_report(read_report(summary.output))


def print_tokenizer_report(report: Mapping[str, Any]) -> None:
    """Print the figures next to those of the reference, then the number of rare and suspicious entries."""
    from pipelines.reports.tokenizer import compare_figures, describe_run

    reference = report["reference"]
    names = [shorten(reference["name"], _NAME_CHARACTERS)] if reference else []
    print_table(["", "this tokenizer", *names], compare_figures(report), narrow=True)
    rare = report["rare"]
    say_wrapped(
        f"rare: {rare['entries']:,} entries ({rare['single_bytes']:,} single bytes) occur fewer than {rare['below']:,} "
        f"times in the corpus, {rare['never']:,} never"
    )
    if report["suspicious"]:
        say_wrapped("suspicious: " + ", ".join(f"{kind['kind']} {kind['entries']:,}" for kind in report["suspicious"]))
    if report["held_out_was_trained_on"]:
        say_wrapped("note: the tokenizer was trained on the held-out split, so its held-out figures are optimistic")
    if report["run"]:
        say_wrapped(", ".join(f"{name}: {value}" for name, value in describe_run(report["run"])))
