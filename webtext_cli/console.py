"""What a person sees: progress on standard error, the summary on standard output."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from typing import Any

import click

from pipelines.core.progress import Progress, Silent
from pipelines.core.run import Summary

_PLAIN_EVERY_S = 10.0
_SHOWN_DROPS = 30
_LEAST_SHORTENED = 8


class PlainProgress:
    """Writes a line at the start, every ten seconds and at the end of a phase; `brief` omits the first and last."""

    def __init__(self, brief: bool = False) -> None:
        self._brief = brief
        self._label = ""
        self._unit = ""
        self._total: int | None = None
        self._done = 0
        self._started = self._shown = 0.0
        self._shown_done = 0

    def start(self, label: str, total: int | None, unit: str) -> None:
        """See `Progress.start`."""
        self._label, self._total, self._unit, self._done, self._shown_done = label, total, unit, 0, 0
        self._started = self._shown = time.monotonic()
        if not self._brief:
            click.echo(f"{label} ...", err=True)

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""
        self._done += units
        now = time.monotonic()
        if now - self._shown >= _PLAIN_EVERY_S:
            # The rate of the last seconds, so that what a task took over from an earlier run does not count for long.
            self._show((self._done - self._shown_done) / (now - self._shown))
            self._shown, self._shown_done = now, self._done

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        click.echo(f"note: {message}", err=True)

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""
        seconds = time.monotonic() - self._started
        if not complete:
            so_far = f", {done_of(self._done, self._total, self._unit)} done" if self._done else ""
            click.echo(f"{self._label}: stopped after {duration(seconds)}{so_far}", err=True)
        elif self._brief:
            pass
        elif self._done:
            # A total may have been an estimate.
            self._total = self._total and self._done
            self._show(self._done / seconds if seconds > 0 else 0.0)
        else:
            click.echo(f"{self._label}: done in {duration(seconds)}", err=True)

    def _show(self, rate: float) -> None:
        seconds = time.monotonic() - self._started
        share = f" ({min(1.0, self._done / self._total):.0%})" if self._total else ""
        line = f"{self._label}: {done_of(self._done, self._total, self._unit)}{share} in {duration(seconds)}"
        line += f", {amount(rate, self._unit)}/s"
        if self._total and rate > 0 and self._done < self._total:
            line += f", {duration((self._total - self._done) / rate)} left"
        click.echo(line, err=True)


class BarProgress:
    """A bar on a terminal with what is done, the rate and the time left; `brief`: a finished bar disappears."""

    def __init__(self, brief: bool = False) -> None:
        self._brief = brief
        self._bar: Any = None
        self._task: Any = None

    def start(self, label: str, total: int | None, unit: str) -> None:
        """See `Progress.start`."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.text import Text

        class Words(ProgressColumn):
            """How far, how fast, and how much longer, in words."""

            def render(self, task: Any) -> Text:
                if task.finished and not task.fields["counted"]:
                    return Text(f"done in {duration(task.finished_time or 0.0)}")
                speed = task.finished_speed or task.speed
                rate = "" if speed is None else f", {amount(speed, unit)}/s"
                left = f", {duration(task.time_remaining)} left" if task.time_remaining else ""
                return Text(f"{done_of(task.completed, task.total, unit)}{rate}{left}", no_wrap=True)

        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), BarColumn(12), Words())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=self._brief)
        self._bar.start()
        self._task = self._bar.add_task(label, total=total, counted=True)

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""
        self._bar.advance(self._task, units)

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        if self._bar is None:
            click.echo(f"note: {message}", err=True)
        else:
            # Through the bar's own console, so that the line stands above the bar and not across it.
            self._bar.console.print(f"note: {message}", markup=False, highlight=False, soft_wrap=True)

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""
        (task,) = self._bar.tasks
        done = task.completed
        if complete:
            self._bar.update(self._task, total=done or 1, completed=done or 1, counted=bool(done))
        else:
            self._bar.update(self._task, description=f"{task.description}: stopped")
        self._bar.stop()
        self._bar = None


class QuietProgress(Silent):
    """Shows no progress, but still what the user should read."""

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        click.echo(f"note: {message}", err=True)


def make_progress(quiet: bool = False, brief: bool = False) -> Progress:
    """Return a bar where standard error is a terminal, plain lines elsewhere; `brief` shows only work in progress."""
    if quiet:
        return QuietProgress()
    return BarProgress(brief) if sys.stderr.isatty() else PlainProgress(brief)


def amount(number: float, unit: str) -> str:
    """Write a number with its unit: `12,345 records`, `3.2 GB`."""
    if unit == "bytes":
        for name in ("bytes", "kB", "MB", "GB", "TB"):
            if abs(number) < 1000 or name == "TB":
                return f"{number:.0f} {name}" if name == "bytes" else f"{number:.1f} {name}"
            number /= 1000
    return f"{number:,.0f} {unit}" if number >= 10 or number == int(number) else f"{number:.1f} {unit}"


def done_of(done: float, total: float | None, unit: str) -> str:
    """Write how far work is: `250 of 1,000 records`, `1.5 MB of 3.0 GB`."""
    if total is None:
        return amount(done, unit)
    return f"{amount(done, unit).removesuffix(f' {unit}')} of {amount(total, unit)}"


def duration(seconds: float) -> str:
    """Write a time: `4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def say(text: str) -> None:
    """Write a line to standard output; where its reader is gone, go on in silence.

    What prints here has done its work or is in the middle of weeks of it (`webtext build | head`).
    """
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_wrapped(text: str) -> None:
    """Write a long line; on a terminal, break it between words and set what follows apart."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        wrapped = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrapped)
    say(text)


def print_summary(summary: Summary, as_json: bool) -> None:
    """Print the funnel of a stage, or one JSON object."""
    if as_json:
        say(json.dumps(summary.to_json(), ensure_ascii=False))
        return
    say(f"{summary.stage}: done in {duration(summary.seconds)}, in {summary.output}")
    rows = [("in", summary.records_in)]
    rows += [(f"dropped.{reason}", -count) for reason, count in list(summary.dropped.items())[:_SHOWN_DROPS]]
    rest = sum(list(summary.dropped.values())[_SHOWN_DROPS:])
    if rest:
        rows.append((f"dropped for {len(summary.dropped) - _SHOWN_DROPS} other reasons", -rest))
    rows.append(("out", summary.records_out))
    width = max(len(label) for label, _ in rows)
    for label, count in rows:
        share = f"  {abs(count) / summary.records_in:7.2%}" if summary.records_in else ""
        say(f"  {label:<{width}}  {count:>14,}{share}")
    for name, value in summary.extra.items():
        # Tables are shown by their own command, and stand in --json.
        if not isinstance(value, list | dict):
            say(f"  {name}: {figure(value)}")


def figure(value: Any) -> str:
    """Write a figure of a summary: whole numbers with separators, others with four digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def print_table(headings: list[str], rows: list[list[str]], title: str | None = None, narrow: bool = False) -> None:
    """Print a table on standard output; the first column is text, the others are right-aligned.

    A narrow one has one space between its columns, where it would not fit into a terminal otherwise; its first column
    is shortened in the middle where it still does not.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 0) if narrow else (0, 1))
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position == 0 else "right", overflow="fold")
    for row in _fitting(headings, rows) if narrow and sys.stdout.isatty() else rows:
        table.add_row(*row)
    # Without a terminal rich would fold at 80 columns; a file or pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    say("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def _fitting(headings: list[str], rows: list[list[str]]) -> list[list[str]]:
    """Return the rows of a narrow table with their first cells as short as the terminal's width asks for."""
    others = sum(max(map(len, column)) + 1 for column in list(zip(headings, *rows, strict=True))[1:])
    width = max(_LEAST_SHORTENED, shutil.get_terminal_size().columns - others - 2)
    return [[shortened(row[0], width), *row[1:]] for row in rows]


def printable(text: str) -> str:
    """Return a text without what would move the cursor or colour the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shortened(text: str, width: int) -> str:
    """Return a text with an ellipsis in its middle where it is longer than a width."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
