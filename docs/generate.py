"""Writes the generated pages of docs/: the command-line reference from the commands' own help.

python docs/generate.py           write docs/cli.md
python docs/generate.py --check   exit 1 if docs/cli.md is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from webtext_cli.main import COMMANDS, webtext

PAGE = Path(__file__).resolve().parent / "cli.md"
WIDTH = 100

HEAD = """\
# Command-line reference

Generated from the commands' own help by `make docs`; do not edit.

"""


def reference() -> str:
    """Return the text of docs/cli.md."""
    root = click.Context(webtext, info_name="webtext", terminal_width=WIDTH, max_content_width=WIDTH)
    return HEAD + "\n".join([_section("webtext", webtext, root), *(_command(name, root) for name in COMMANDS)])


def _command(name: str, root: click.Context) -> str:
    command = webtext.get_command(root, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=root, terminal_width=WIDTH, max_content_width=WIDTH)
    return _section(f"webtext {name}", command, context)


def _section(title: str, command: click.Command, context: click.Context) -> str:
    lines = [line.rstrip() for line in command.get_help(context).splitlines()]
    return f"## {title}\n\n```text\n" + "\n".join(lines) + "\n```\n"


def main() -> int:
    """Write the page, or compare it."""
    text = reference()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is not current; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
