"""`webtext help`."""

from __future__ import annotations

import click

from webtext_cli.console import say
from webtext_cli.options import debug_option


@click.command("help")
@click.argument("name", metavar="[COMMAND]", required=False)
@debug_option
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Show the help of a command.

    \b
    Example:
      webtext help dedup
    """
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    if name is None:
        say(root.get_help())
        return
    shown = root.command.get_command(root, name)
    if shown is None:
        root.command.resolve_command(root, [name])  # raises the error of a wrong command
    assert shown is not None
    say(shown.get_help(click.Context(shown, info_name=name, parent=root)))
