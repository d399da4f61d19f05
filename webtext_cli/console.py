"""Console output: progress on standard error, summaries and tables on standard output."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import click

from pipelines.engine.run import Summary
from pipelines.errors import format_message
from pipelines.format import (
    describe_field,
    escape_output,
    format_done,
    format_duration,
    format_rate,
    to_json,
)
from pipelines.progress import Progress, Silent, set_terminal

_PLAIN_INTERVAL_S = 10.0
# A phase that counts nothing and ends within this time is not worth a line.
_SHORT_S = 1.0
_BRIEF_WIDTH = 80
_MAX_DROP_REASONS = 30
_MIN_FIRST_COLUMN = 8


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return format_message(super().format(record), one_line=False)


# Libraries may quote a text in a warning, or in a log record, which is written to standard error.
_format_warning = warnings.formatwarning
warnings.formatwarning = lambda *values, **options: format_message(_format_warning(*values, **options), one_line=False)
cast(logging.Handler, logging.lastResort).setFormatter(_LogFormatter())


def complain(line: str) -> None:
    """Write a line to standard error."""
    click.echo(format_message(line), err=True)


class QuietProgress(Silent):
    """Shows notes but no progress; `brief` wraps them."""

    def __init__(self, brief: bool = False) -> None:
        self._brief = brief

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        click.echo(self._note_line(message), err=True)

    def _note_line(self, message: str) -> str:
        line = f"note: {format_message(message)}"
        return textwrap.fill(line, _BRIEF_WIDTH, subsequent_indent=" " * 6) if self._brief else line


set_terminal(QuietProgress())


class PlainProgress(QuietProgress):
    """Writes a line at the start, every ten seconds and at the end of a phase; `brief` omits the first and last.

    A phase without a total has no line at the start and, if it is short, none at the end.
    """

    def start(self, label: str, total: int | None, unit: str) -> None:
        """See `Progress.start`."""
        self._label, self._total, self._unit, self._done, self._printed_done = format_message(label), total, unit, 0, 0
        self._started_at = self._printed_at = time.monotonic()
        if not self._brief and total is not None:
            click.echo(f"{self._label} ...", err=True)

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""
        self._done += units
        now = time.monotonic()
        if self.is_paused:
            self._printed_at, self._printed_done, self.is_paused = now, self._done, False
        if now - self._printed_at >= _PLAIN_INTERVAL_S:
            # The rate since the last line: work that a resumed run skips must not count for long.
            self._print((self._done - self._printed_done) / (now - self._printed_at))
            self._printed_at, self._printed_done = now, self._done

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""
        seconds = time.monotonic() - self._started_at
        if not complete:
            so_far = f", {format_done(self._done, self._total, self._unit)} done" if self._done else ""
            click.echo(f"{self._label}: stopped after {format_duration(seconds)}{so_far}", err=True)
        elif self._brief:
            pass
        elif self._done:
            # The total may have been an estimate.
            self._total = self._total and self._done
            self._print(self._done / seconds if seconds > 0 else 0.0)
        elif seconds >= _SHORT_S:
            click.echo(f"{self._label}: done in {format_duration(seconds)}", err=True)

    def _print(self, rate: float) -> None:
        seconds = time.monotonic() - self._started_at
        share = min(1.0, self._done / self._total) if self._total else 0.0
        done = format_done(self._done, self._total, self._unit) + (f" ({share:.0%})" if self._total else "")
        line = f"{self._label}: {done} in {format_duration(seconds)}"
        left = (self._total - self._done) / rate if self._total and rate > 0 and share >= 0.01 else None
        click.echo(line + format_rate(rate, left, self._unit), err=True)


class BarProgress(QuietProgress):
    """A progress bar with completed amount, rate and time left; with `brief`, a finished bar disappears."""

    _bar: Any = None

    def start(self, label: str, total: int | None, unit: str) -> None:
        """See `Progress.start`."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.text import Text

        class Details(ProgressColumn):
            """The completed amount, rate and time left."""

            def render(self, task: Any) -> Text:
                if task.finished and not task.fields["counted"]:
                    return Text(f"done in {format_duration(task.finished_time or 0.0)}")
                speed = task.finished_speed or task.speed
                done = format_done(task.completed, task.total, unit)
                left = task.time_remaining if task.percentage >= 1 else None
                return Text(done + format_rate(speed, left, unit), no_wrap=True)

        label_column = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(finished_text="✓"), label_column, BarColumn(12), Details())
        self._bar = Progress(*columns, console=Console(stderr=True, emoji=False), transient=self._brief)
        self._bar.start()
        self._task = self._bar.add_task(format_message(label), total=total, counted=True)

    def advance(self, units: int) -> None:
        """See `Progress.advance`."""
        if self.is_paused:
            self._bar.reset(self._task, completed=self._bar.tasks[0].completed)
            self.is_paused = False
        self._bar.advance(self._task, units)

    def note(self, message: str) -> None:
        """See `Progress.note`."""
        if self._bar is None:
            super().note(message)
        else:
            # The bar's own console prints the line above the bar.
            self._bar.console.print(self._note_line(message), markup=False, highlight=False, soft_wrap=True)

    def finish(self, complete: bool) -> None:
        """See `Progress.finish`."""
        (task,) = self._bar.tasks
        done = task.completed
        if complete:
            self._bar.update(self._task, total=done or 1, completed=done or 1, counted=bool(done))
            self._bar.live.transient |= not done and task.elapsed < _SHORT_S
        else:
            self._bar.update(self._task, description=f"{task.description}: stopped")
        self._bar.stop()
        self._bar = None


def make_progress(quiet: bool = False, brief: bool = False) -> Progress:
    """Return a bar if standard error is a terminal, else plain lines; `brief` shows only work in progress."""
    if quiet:
        return QuietProgress()
    return BarProgress(brief) if sys.stderr.isatty() else PlainProgress(brief)


def say(text: str, is_escaped: bool = False) -> None:
    """Write a line to standard output; a closed pipe (`webtext build | head`) does not stop the command."""
    try:
        shown = text if is_escaped else escape_output(text)
        click.echo(shown, color=True)  # without color, click would remove ANSI sequences in a pipe
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_marked(parts: Sequence[tuple[str, bool]]) -> None:
    """Write the parts of a line; on a terminal that has bold type, the marked ones in it."""
    has_bold = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown = [(escape_output(part, one_line=True), is_marked and has_bold) for part, is_marked in parts]
    say("".join(click.style(part, bold=True) if is_bold else part for part, is_bold in shown), is_escaped=True)


def print_result(result: Any, as_json: bool, print_text: Callable[[Any], None], has_paths: bool = False) -> None:
    """Print a result as one JSON object, or as text; paths, unlike documents, without credentials."""
    if as_json:
        say(format_message(to_json(result)) if has_paths else to_json(result))
    else:
        print_text(result)


def say_wrapped(text: str) -> None:
    """Write a long line; on a terminal, wrap it between words and indent the following lines."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    say(text)


def print_summary(summary: Summary, as_json: bool) -> None:
    """Print the funnel of a stage and its figures in words, or one JSON object."""
    if as_json:
        say(to_json(summary.to_json()))
        return
    say(f"{summary.stage}: done in {format_duration(summary.seconds)}, in {format_message(summary.output)}")
    print_funnel("records", summary.records_in, summary.dropped)
    for name, value in summary.extra.items():
        # Tables are printed by their command, and included in --json.
        if not isinstance(value, list | dict):
            say(f"  {describe_field(name, value)}")


def print_funnel(noun: str, records_in: int, dropped: Mapping[str, int]) -> None:
    """Print the number of records in, dropped for each reason and out, with their shares."""
    rows = [(f"dropped: {reason}", count) for reason, count in dropped.items()]
    if others := rows[_MAX_DROP_REASONS:]:
        rows[_MAX_DROP_REASONS:] = [(f"dropped for {len(others)} other reasons", sum(count for _, count in others))]
    rows = [(f"{noun} in", records_in), *rows, (f"{noun} out", records_in - sum(dropped.values()))]
    width = max(len(label) for label, _ in rows)
    for label, count in rows:
        share = f"  {count / records_in:7.2%}" if records_in else ""
        say(f"  {label:<{width}}  {count:>{len(f'{records_in:,}')},}{share}")


def print_table(
    headings: list[str],
    rows: list[list[str]],
    title: str | None = None,
    narrow: bool = False,
    text_columns: bool = False,
    is_number: Sequence[bool] = (),
) -> None:
    """Print a table on standard output; the first column is text, the others are right-aligned unless they are text.

    `is_number` says it of each column instead.

    A narrow table has one space between its columns; on a terminal that is still too small, the texts of its first
    column are shortened in the middle.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # Before the columns are measured.
    headings, *rows = [[escape_output(cell, one_line=True) for cell in row] for row in (headings, *rows)]
    padding = (0, 0) if narrow or text_columns else (0, 1)
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=padding)
    for position, heading in enumerate(headings):
        is_text = not is_number[position] if is_number else position == 0 or text_columns
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=position == 0 and text_columns)
    for row in _fit_to_terminal(headings, rows) if narrow and sys.stdout.isatty() else rows:
        table.add_row(*row)
    # Without a terminal, rich would fold at 80 columns; a file or pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    say("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def _fit_to_terminal(headings: list[str], rows: list[list[str]]) -> list[list[str]]:
    """Return the rows of a narrow table with their first cells shortened to the width of the terminal."""
    others = sum(max(map(len, column)) + 1 for column in list(zip(headings, *rows, strict=True))[1:])
    width = max(_MIN_FIRST_COLUMN, shutil.get_terminal_size().columns - others - 2)
    return [[shorten(row[0], width), *row[1:]] for row in rows]


def shorten(text: str, width: int) -> str:
    """Shorten a text that is longer than a width by an ellipsis in its middle."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
