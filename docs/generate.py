"""Write the generated parts of the documentation: the command-line reference, the example of the Python API, the output
of `webtext plan` on its page, and the tables of times in README and of memory in docs/scaling.md, of the same figures.

python docs/generate.py           write them
python docs/generate.py --check   exit 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from click.testing import CliRunner

from pipelines.format import format_bytes, format_duration, format_quantity
from pipelines.plan import DOCUMENT_BYTES, WEBTEXT, Resources, estimate_costs, read_rates
from webtext_cli.main import COMMANDS, webtext

DOCS = Path(__file__).resolve().parent
EXAMPLE = DOCS.parent / "examples" / "whole_pipeline.py"
README = DOCS.parent / "README.md"
WIDTH = 100

HEAD = """\
# Command-line reference

Generated from the commands' own help by `make docs`; do not edit.

"""


def reference() -> str:
    """Return the text of docs/cli.md."""
    settings = webtext.context_settings | {"terminal_width": WIDTH, "max_content_width": WIDTH}
    root = click.Context(webtext, info_name="webtext", **settings)
    return HEAD + "\n".join([_section("webtext", webtext, root), *(_command(name, root) for name in COMMANDS)])


def python_page() -> str:
    """Return docs/python.md with examples/whole_pipeline.py as its first block of code."""
    block = f"```python\n{EXAMPLE.read_text(encoding='utf-8')}```"
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    return re.sub(r"```python\n.*?```", lambda _: block, text, count=1, flags=re.DOTALL)


def readme() -> str:
    """Return README.md with the table of times, as `webtext plan --cores 16 --memory-gb 64` has them."""
    rates = read_rates()
    lines = ["| stage | input | core time | 16 cores | disk |", "|---|---|---|---|---|"]
    for cost in estimate_costs(WEBTEXT, rates, Resources(nodes=1, cores=16, memory_bytes=64 * 10**9)):
        size = format_quantity(cost.amount, cost.unit)
        core_time = format_duration(cost.amount * rates[cost.stage].core_s)
        cells = (f"`{cost.stage}`", size, core_time, format_duration(cost.seconds), format_bytes(cost.disk_bytes))
        lines.append(f"| {' | '.join(cells)} |")
    return _with_table(README, "plan", lines)


def scaling_page() -> str:
    """Return docs/scaling.md with the memory of each stage, as `webtext plan` estimates it."""
    counts = (8_000_000, 100_000_000, 1_000_000_000)
    columns = ["stage", "D", "W, MB", "S", "work", *(f"{n // 10**6:,}M" for n in counts)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for stage, rate in read_rates().items():
        unit = WEBTEXT.amounts()[stage][1]
        work_bytes = rate.work_bytes * (DOCUMENT_BYTES if unit == "bytes" else 1)
        memory = [rate.memory_bytes(n, WEBTEXT.shards) for n in counts]
        cells = [f"`{stage}`", f"{rate.driver_bytes:g}"]
        cells += [f"{figure:,.0f}" for figure in (rate.worker_bytes / 1e6, rate.shard_bytes, work_bytes)]
        cells += [f"{driver_bytes / 1e9:.1f}/{worker_bytes / 1e9:.1f}" for driver_bytes, worker_bytes in memory]
        lines.append(f"| {' | '.join(cells)} |")
    return _with_table(DOCS / "scaling.md", "memory", lines)


def _with_table(page: Path, name: str, lines: list[str]) -> str:
    text, marks = page.read_text(encoding="utf-8"), (f"<!-- {name} -->\n", f"<!-- /{name} -->")
    return re.sub(f"(?<={marks[0]}).*?(?={marks[1]})", "\n".join(lines) + "\n", text, flags=re.DOTALL)


def plan_page() -> str:
    """Return docs/plan.md with the output of the command as its first block of text."""
    output = CliRunner().invoke(webtext, ["plan", "--cores", "16", "--memory-gb", "64"], env={"COLUMNS": "80"}).output
    block = "```text\n" + output.strip("\n") + "\n```"
    text = (DOCS / "plan.md").read_text(encoding="utf-8")
    return re.sub(r"```text\n.*?```", lambda _: block, text, count=1, flags=re.DOTALL)


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
    parts = {"cli.md": reference, "python.md": python_page, "plan.md": plan_page, "scaling.md": scaling_page}
    parts["../README.md"] = readme
    for name, text in ((name, part()) for name, part in parts.items()):
        page = (DOCS / name).resolve()
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
