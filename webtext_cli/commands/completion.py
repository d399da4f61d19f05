"""`webtext completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from webtext_cli.console import say
from webtext_cli.parameters import Choice, Command


@click.command("completion", cls=Command)
@click.argument("shell", metavar="SHELL", type=Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
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
