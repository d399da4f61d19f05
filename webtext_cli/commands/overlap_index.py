"""`webtext overlap-index`."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from pipelines.engine.config import flag_of
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from webtext_cli.console import print_summary
from webtext_cli.options import (
    DOCUMENTS_HELP,
    Shared,
    check_disjoint,
    config_options,
    stage_config,
    stage_options,
)

# Options that also apply to merging.
_WITH_MERGE = ("memory_limit_mb",)


@click.command("overlap-index")
@click.option(
    "--merge",
    metavar="DIR",
    multiple=True,
    help="Merge indexes built with the same options and the same --items, instead of reading documents (repeatable).",
)
@config_options(OverlapIndexConfig)
@stage_options(DOCUMENTS_HELP)
def command(shared: Shared, merge: tuple[str, ...], **flags: Any) -> None:
    """Index the corpus's 8-grams in a Bloom filter.

    Use it for benchmarks that you do not have yet, and to share an index without its text: overlap-report --index reads
    it. With the corpus at hand, overlap-report alone is exact and needs no index.

    \b
    Examples:
      webtext overlap-index --corpus my-corpus
      webtext overlap-index -i docs.parquet -o index --ngram 13 --error-rate 1e-6
      webtext overlap-index --merge index-1 --merge index-2 -o index
    """
    from pipelines.stages.overlap_index.stage import overlap_index

    if merge:
        _check_option_conflicts(shared, flags)
    config = stage_config(OverlapIndexConfig, "overlap-index", shared.corpus, flags)
    output = shared.stage_output("overlap-index")
    check_disjoint(output, merge)
    summary = overlap_index(
        config,
        documents=None if merge else shared.input_of("overlap-index"),
        output=output,
        options=shared.run_options(),
        merge=merge,
    )
    print_summary(summary, shared.as_json)


def _check_option_conflicts(shared: Shared, flags: dict[str, Any]) -> None:
    """Raise UsageError for --input, and for options that a merge takes from the indexes."""
    from pipelines.errors import UsageError

    if shared.input:
        raise UsageError("--input and --merge exclude each other: merging does not read documents")
    for field in dataclasses.fields(OverlapIndexConfig):
        if flags.get(field.name) is not None and field.name not in _WITH_MERGE:
            raise UsageError(f"{flag_of(field.name)} cannot be set with --merge: it is that of the indexes")
