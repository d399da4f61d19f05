"""Write the generated parts of docs/: the command-line reference, and the example on the page of the Python API.

python docs/generate.py           write them
python docs/generate.py --check   exit 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from webtext_cli.main import COMMANDS, webtext

DOCS = Path(__file__).resolve().parent
EXAMPLE = DOCS.parent / "examples" / "webtext.py"
WIDTH = 100

HEAD = """\
# Command-line reference

Generated from the commands' own help by `make docs`; do not edit.

"""


def reference() -> str:
    """Return the text of docs/cli.md."""
    root = click.Context(webtext, info_name="webtext", terminal_width=WIDTH, max_content_width=WIDTH)
    return HEAD + "\n".join([_section("webtext", webtext, root), *(_command(name, root) for name in COMMANDS)])


def python_page() -> str:
    """Return docs/python.md with examples/webtext.py as its first block of code."""
    block = f"```python\n{EXAMPLE.read_text(encoding='utf-8')}```"
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    return re.sub(r"```python\n.*?```", lambda _: block, text, count=1, flags=re.DOTALL)


def _command(name: str, root: click.Context) -> str:
    command = webtext.get_command(root, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=root, terminal_width=WIDTH, max_content_width=WIDTH)
    return _section(f"webtext {name}", command, context)


def _section(title: str, command: click.Command, context: click.Context) -> str:
    lines = [line.rstrip() for line in command.get_help(context).splitlines()]
    return f"## {title}\n\n```text\n" + "\n".join(lines) + "\n```\n"


def main() -> int:
    """Write the pages, or compare them."""
    outdated = 0
    for name, text in (("cli.md", reference()), ("python.md", python_page())):
        page = DOCS / name
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{page} is not up to date; run `make docs`", file=sys.stderr)
            outdated = 1
        else:
            page.write_text(text, encoding="utf-8")
    return outdated


if __name__ == "__main__":
    sys.exit(main())
