"""`webtext help` and `webtext completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from webtext_cli.console import say
from webtext_cli.parameters import Choice, Command


@click.command("help", cls=Command)
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def help(context: click.Context, name: str | None) -> None:
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
    _, shown, _ = root.command.resolve_command(root, [name])
    assert shown is not None
    say(shown.get_help(click.Context(shown, info_name=name, parent=root)))


@click.command("completion", cls=Command)
@click.argument("shell", metavar="SHELL", type=Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    With it, the tab key completes commands and options.

    \b
    Examples:
      eval "$(webtext completion bash)"                                # in ~/.bashrc
      eval "$(webtext completion zsh)"                                 # in ~/.zshrc
      webtext completion fish > ~/.config/fish/completions/webtext.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    say(completion(context.find_root().command, {}, "webtext", "_WEBTEXT_COMPLETE").source())
