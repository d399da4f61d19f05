"""`webtext rehydrate`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import write_index
from pipelines.errors import UsageError
from pipelines.format import to_json
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.rehydrate.config import RehydrateConfig
from webtext_cli.console import make_progress, print_summary, say
from webtext_cli.options import (
    StageCall,
    config_of_flags,
    config_options,
    discard_pages_option,
    flags_that_are_set,
    stage_command,
)
from webtext_cli.parameters import Choice

_SOURCES = {"live": "live", "archives": "archives", "both": "live"}
# Pages come from the web or from archives, and none is left out.
_NOT_OFFERED = ("source", "pages", "urls", "max_pages_per_domain")


@stage_command("rehydrate", corpus=None)
@click.argument("release", metavar="RELEASE")
@click.option("--output", "-o", "corpus", metavar="CORPUS", required=True, help="Corpus folder to write.")
@click.option(
    "--from",
    "source",
    type=Choice(tuple(_SOURCES)),
    default="live",
    help="Pages of the web as it is now, captures of --archive that are nearest to the recorded date, or captures of "
    "the pages that are gone. Without --archive, wayback is used. [default: live]",
)
@config_options(RehydrateConfig)
@click.option("--retry", metavar="REASON", multiple=True, help="Retry pages that could not be fetched for this reason.")
@config_options(FetchConfig, _NOT_OFFERED)
@discard_pages_option
def command(call: StageCall, release: str, source: str, retry: tuple[str, ...], **values: Any) -> None:
    """Rebuild a corpus from a release: fetch its URLs, extract, and compare.

    Each document of the release gets a verdict: exact (the same text), near, changed or gone. The stages run with the
    options that the release recorded; re-run the same command to resume.

    \b
    Examples:
      webtext rehydrate release/ -o my-corpus --contact mailto:me@example.org
      webtext rehydrate release/ -o my-corpus --from both --archive wayback
      webtext rehydrate release/ -o my-corpus --retry timeout
    """
    from pipelines.corpus.rehydration import rehydrate_release

    flags = flags_that_are_set(FetchConfig, values)
    if source == "live" and "archive" in flags:
        raise UsageError("--archive has no effect with --from live; use --from both or --from archives")
    if source != "live":
        flags = {"archive": ("wayback",), "source": _SOURCES[source], **flags}
    config, summaries = config_of_flags(RehydrateConfig, values), []
    for summary in rehydrate_release(release, call.corpus, config, call.run_options(), flags, retry):
        summaries.append(summary)
        if not call.as_json:
            print_summary(summary, as_json=False)
    write_index(call.corpus, make_progress(call.quiet).note)
    if call.as_json:
        say(to_json({"stages": [summary.to_json() for summary in summaries]}))
