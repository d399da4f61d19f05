"""`webtext rehydrate`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import write_index
from pipelines.stages.fetch.config import FetchConfig
from webtext_cli.console import make_progress, print_result, print_summary
from webtext_cli.options import StageCall, check_disjoint, config_options, discard_pages_option, stage_command


@stage_command("rehydrate", corpus=None)
@click.argument("release", metavar="RELEASE")
@click.option("--output", "-o", "corpus", metavar="CORPUS", required=True, help="Corpus folder to write.")
@click.option(
    "--any-version",
    is_flag=True,
    help="Accept a release of another version of extract or filter, although equal pages can give other texts.",
)
@config_options(FetchConfig)
@discard_pages_option
def command(call: StageCall, release: str, any_version: bool, **flags: Any) -> None:
    """Rebuild a corpus from a release: fetch its URLs, extract, and compare.

    Each document of the release gets a verdict: exact (the same text), near, changed or gone. Texts are extracted with
    the options that the release recorded. Re-run the same command to resume.

    \b
    Examples:
      webtext rehydrate release/ -o my-corpus --contact mailto:me@example.org
      webtext rehydrate release/ -o my-corpus --source archives --archive wayback
    """
    from pipelines.corpus.rehydration import rehydrate_release

    check_disjoint(call.corpus, [release])
    flags = {name: value for name, value in flags.items() if value not in (None, ())}
    summaries = []
    for summary in rehydrate_release(release, call.corpus, call.run_options(), flags, any_version):
        summaries.append(summary.to_json())
        if not call.as_json:
            print_summary(summary, as_json=False)
    write_index(call.corpus, make_progress(call.quiet).note)
    print_result({"stages": summaries}, call.as_json, lambda _: None)  # the text was printed before
