"""`webtext release`."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from pipelines.errors import UsageError, format_message
from pipelines.release.config import ReleaseConfig
from webtext_cli.console import print_summary, say
from webtext_cli.options import StageCall, check_disjoint, config_of_flags, config_options, stage_command


@stage_command("release")
@config_options(ReleaseConfig)
@click.option("--urls-only", is_flag=True, help="Publish no texts (the default).")
@click.option("--output", "-o", metavar="DIR", required=True, help="Folder of the release, or of its earlier version.")
@click.option("--push", metavar="REPO", help="Upload the release to a data set repository of the Hugging Face Hub.")
@click.option("--yes", is_flag=True, help="With --push, upload without asking.")
def command(call: StageCall, urls_only: bool, push: str | None, yes: bool, **flags: Any) -> int:
    """Publish a corpus as a folder that others can load, verify and rebuild.

    Writes a row for each link with the hash of its text, with --texts the documents, the ids of removed ones, a data
    card, Croissant metadata, a summary of the training content, and checksums. A folder with an earlier version gets
    the next one. --push shows what would be uploaded, and asks.

    \b
    Examples:
      webtext release --corpus my-corpus -o my-release --license ODC-By-1.0
      webtext release --corpus my-corpus -o my-release --license CC-BY-4.0 --texts
      webtext release --corpus my-corpus -o out --license CC0-1.0 --push me/name
    """
    if urls_only and flags.get("texts"):
        raise UsageError("--urls-only and --texts cannot be combined; use one")
    if yes and not push:
        raise UsageError("--yes has no effect without --push")
    if push and not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", push):
        raise UsageError(f"--push {push}: is not the name of a repository, such as me/my-corpus")
    output = call.output or ""
    check_disjoint(output, [call.corpus])
    from pipelines.release.stage import release

    config = config_of_flags(ReleaseConfig, flags)
    print_summary(release(config, corpus=call.corpus, output=output, options=call.run_options()), call.as_json)
    if not push:
        return 0
    from pipelines.release.hub import push as upload

    def confirm(plan: str) -> bool:
        say(format_message(plan))
        return yes or (sys.stdin.isatty() and click.confirm("Upload?"))

    address = upload(output, push, confirm)
    say(address or "nothing uploaded; --yes uploads without asking")
    return 0 if address else 1
