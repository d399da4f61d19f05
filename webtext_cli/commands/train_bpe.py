"""`webtext train-bpe`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import CorpusConfig
from pipelines.stages.train_bpe.config import TrainBpeConfig
from webtext_cli.console import print_summary
from webtext_cli.options import (
    DOCUMENTS_HELP,
    Shared,
    check_disjoint,
    config_options,
    stage_config,
    stage_options,
)


@click.command("train-bpe")
@click.option(
    "--counts",
    "counts_paths",
    metavar="PATH",
    multiple=True,
    help="Train from word counts instead of documents: folders of this command, or Parquet files with the columns word "
    "and count; several are added up (repeatable; may be a glob).",
)
@click.option(
    "--compare",
    metavar="PATH",
    help="A tokenizer to compare with in the report, such as GPT-2's own encoder.json and vocab.bpe.",
)
@config_options(TrainBpeConfig)
@stage_options(DOCUMENTS_HELP)
def command(shared: Shared, counts_paths: tuple[str, ...], compare: str | None, **flags: Any) -> None:
    """Train a byte-level BPE tokenizer like GPT-2's.

    Writes the tokenizer in the format of every common library, the counts of all words (for --counts), and a
    report. Ids follow GPT-2: 256 bytes, the merges, <|endoftext|> last.

    \b
    Examples:
      webtext train-bpe --corpus my-corpus
      webtext train-bpe -i docs.jsonl.zst -o my-tokenizer --vocab-size 8192
      webtext train-bpe --counts my-tokenizer -o smaller --vocab-size 4096
    """
    from pipelines.errors import UsageError
    from pipelines.stages.train_bpe.stage import read_report, train_bpe
    from webtext_cli.tables.tokenizer import print_tokenizer_report

    config = stage_config(TrainBpeConfig, "train-bpe", shared.corpus, flags)
    if counts_paths and shared.input:
        raise UsageError("--input and --counts exclude each other: counts replace documents")
    counts = list(counts_paths) or ([] if shared.input else CorpusConfig(shared.corpus).files("train-bpe"))
    compare = compare or CorpusConfig(shared.corpus).paths("train-bpe").get("compare")
    output = shared.stage_output("train-bpe")
    check_disjoint(output, [*counts, *([compare] if compare else [])])
    summary = train_bpe(
        config,
        documents=[] if counts else shared.input_of("train-bpe"),
        output=output,
        options=shared.run_options(),
        counts=counts,
        compare=compare,
    )
    print_summary(summary, shared.as_json)
    if not (shared.as_json or config.count_only):
        print_tokenizer_report(read_report(output))
