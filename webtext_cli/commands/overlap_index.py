"""`webtext overlap-index`."""

from __future__ import annotations

import click

from pipelines.engine.config import flag_of
from pipelines.errors import UsageError
from webtext_cli.options import DOCUMENTS_HELP, StageCall, check_disjoint, stage_command

# Options that also apply to merging.
_WITH_MERGE = ("memory_limit_mib", "workers", "executor", "ray_address")


@stage_command("overlap-index", DOCUMENTS_HELP)
@click.option(
    "--merge",
    metavar="DIR",
    multiple=True,
    help="Merge indexes built with the same options and the same --items, instead of reading documents.",
)
def command(call: StageCall, merge: tuple[str, ...]) -> None:
    """Index the corpus's 8-grams in a Bloom filter.

    Lets you check future benchmarks without the corpus, or share an index without the text: overlap-report --index
    queries it. If you have the corpus, overlap-report alone is exact and needs no index.

    \b
    Examples:
      webtext overlap-index --corpus my-corpus
      webtext overlap-index docs.parquet -o index --ngram 13 --error-rate 1e-6
      webtext overlap-index --merge index-1 --merge index-2 -o index
    """
    if not merge:
        call.run()
        return
    if call.input:
        raise UsageError("--input and --merge cannot be combined: merging reads no documents")
    for name, value in call.flags.items():
        if value is not None and name not in _WITH_MERGE:
            raise UsageError(f"{flag_of(name)} has no effect with --merge, which takes it from the indexes; omit it")
    check_disjoint(call.output_folder(), merge)
    call.run(documents=None, merge=merge)
