"""`webtext init`."""

from __future__ import annotations

import click

from webtext_cli.options import debug_option


@click.command("init")
@click.argument("folder", metavar="DIR")
@debug_option
def command(folder: str) -> None:
    """Write a commented webtext.toml for a new corpus.

    The file lists every option of every stage with its meaning, range and default, commented out.

    \b
    Example:
      webtext init my-corpus
    """
    from pipelines import storage
    from pipelines.engine.config import CONFIG_FILE
    from pipelines.errors import UsageError
    from pipelines.template import config_template

    path = storage.join(folder, CONFIG_FILE)
    if storage.exists(path):
        raise UsageError(f"{path}: already exists; edit it, or name another folder")
    storage.write_bytes(path, config_template().encode())
    click.echo(f"wrote {path}: name your dumps under [scrape], then run `webtext build --corpus {folder}`")
