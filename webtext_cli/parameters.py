"""Commands whose help lists their options in groups, and types of parameters whose errors are in plain words."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from pipelines.engine.config import INPUT_OUTPUT, describe_choices, describe_range

# The order of the options in a help: these are the first and the last, the latter in a group of their own.
_FIRST = ("--corpus", "--input", "--output")
_EXECUTION = ("--workers", "--executor", "--ray-address", "--overwrite", "--json", "--quiet", "--debug", "--help")
_PATH = re.compile(r"\b(PATH|DIR|FILE)\b")


class Option(click.Option):
    """An option of a group."""

    def __init__(self, *names: Any, group: str, **properties: Any) -> None:
        super().__init__(*names, **properties)
        self.group = group


class Command(click.Command):
    """A command whose help lists its options in groups: input and output first, execution last."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {INPUT_OUTPUT: [], "Options": []}
        options = {max(one.opts, key=len): one for one in self.get_params(context) if isinstance(one, click.Option)}
        middle = [flag for flag in options if flag not in _FIRST + _EXECUTION]
        for flag in filter(options.__contains__, (*_FIRST, *middle, *_EXECUTION)):
            if record := options[flag].get_help_record(context):
                text = record[1] + " (repeatable)" * (options[flag].multiple and flag != "--input")
                is_path = flag in _FIRST or _PATH.search(options[flag].metavar or "")
                group = getattr(options[flag], "group", "") or (INPUT_OUTPUT if is_path else "Options")
                row = (record[0], re.sub(r"  \[default: \(?(.*?)\)?\]$", r" [default: \1]", text))
                groups.setdefault("Execution" if flag in _EXECUTION else group, []).append(row)
        for group, rows in groups.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


class Number(click.ParamType[Any]):
    """A whole or decimal number that is within limits."""

    def __init__(self, kind: type[int] | type[float], minimum: float = -math.inf, maximum: float = math.inf) -> None:
        self._kind, self._minimum, self._maximum = kind, minimum, maximum
        self.name = "n" if kind is int else "number"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the number; fail with what it must be."""
        try:
            number = self._kind(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{value}: is not a {'whole ' if self._kind is int else ''}number", parameter, context)
        if not self._minimum <= number <= self._maximum:
            self.fail(f"{value}: must be {describe_range(self._minimum, self._maximum)}", parameter, context)
        return number


class Choice(click.Choice[str]):
    """One of a few words; a typo is answered with the nearest one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the choices, and the nearest one."""
        return f"{value}: {describe_choices(value, self.choices)}"


class Choices(Choice):
    """Some of a few words, separated by commas, as a list."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words; fail for another one."""
        return [Choice.convert(self, item, param, ctx) for item in value.split(",")]
