"""The options that commands share, and those that are made from a stage's config."""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pipelines.build import corpus_tables, other_keys, stage_files, stage_paths, stage_table
from pipelines.core.config import CONFIG_FILE, Config, OptionSpec, field_types, make_config, spec_of
from pipelines.core.errors import UsageError
from pipelines.core.executor import default_workers, make_executor
from pipelines.core.run import RunOptions
from pipelines.core.storage import join
from pipelines.pipeline import BY_NAME
from webtext_cli.console import make_progress

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Shared:
    """The values of the shared options."""

    corpus: str
    workers: int
    overwrite: bool
    as_json: bool
    quiet: bool
    input: tuple[str, ...] = ()
    output: str | None = None

    def stage_output(self, stage: str) -> str:
        """Return `--output`, or the stage's folder in the corpus.

        Raises UsageError where that folder lies in an input, or an input in it.
        """
        output = self.output or join(self.corpus, stage)
        check_apart(output, self.input)
        if self.output and not self.input and stage in BY_NAME:
            check_apart(output, [join(self.corpus, each) for each in BY_NAME[stage].reads.values()])
        return output

    def stage_input(self, stage: str) -> str:
        """Return the folder of an earlier stage in the corpus."""
        return join(self.corpus, stage)

    def input_or(self, stage: str) -> list[str]:
        """Return `--input`, or the folder of the stage before."""
        return list(self.input) or [self.stage_input(stage)]

    def run_options(self) -> RunOptions:
        """Return how to run a stage."""
        return RunOptions(make_executor(self.workers), self.overwrite, make_progress(self.quiet))


def check_apart(output: str, inputs: Sequence[str]) -> None:
    """Raise UsageError where a command would write into what it reads."""
    ours = _parts(output)
    for path in inputs:
        theirs = _parts(path)
        shorter = min(len(ours), len(theirs))
        if path != "-" and ours[:shorter] == theirs[:shorter]:
            raise UsageError(
                f"{path}: is read and {output} is written, and one lies in the other; choose an --output apart"
            )


def _parts(path: str) -> list[str]:
    return (path if "://" in path else os.path.abspath(path)).rstrip("/").split("/")


def corpus_option(command: Command, default: str = ".") -> Command:
    """Add `--corpus`."""
    return click.option(
        "--corpus",
        metavar="DIR",
        # A command with a folder of its own (the demo) must not take a real corpus from the environment.
        envvar="WEBTEXT_CORPUS" if default == "." else None,
        default=default,
        show_default="the current folder" if default == "." else default,
        help="The corpus folder; each stage reads and writes a folder of its own in it."
        + (" [env: WEBTEXT_CORPUS]" if default == "." else ""),
    )(command)


def json_option(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")(command)


def debug_option(command: Command) -> Command:
    """Add `--debug`, which `webtext_cli.main` acts on."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(command)


def stage_options(
    reads: str | None = None, *, only_corpus: bool = False, corpus: str = "."
) -> Callable[[Command], Callable[..., Any]]:
    """Add the options of every stage and pass them as `shared`.

    `reads` words what `--input` takes; `only_corpus` leaves out `--input` and `--output`; `corpus` is the default.
    """

    def decorate(command: Command) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(**values: Any) -> Any:
            names = [field.name for field in dataclasses.fields(Shared)]
            shared = Shared(**{name: values.pop(name) for name in names if name in values})
            return command(shared=shared, **values)

        decorated: Callable[..., Any] = gathered
        for add in reversed(_stage_option_list(reads, only_corpus, corpus)):
            decorated = add(decorated)
        return decorated

    return decorate


def _stage_option_list(reads: str | None, only_corpus: bool, corpus: str) -> list[Callable[[Any], Any]]:
    added: list[Callable[[Any], Any]] = [functools.partial(corpus_option, default=corpus)]
    if reads is not None:
        added.append(
            click.option("--input", "-i", metavar="PATH", multiple=True, help=f"{reads} (repeatable; also a glob).")
        )
    if not only_corpus:
        added.append(click.option("--output", "-o", metavar="DIR", help="Write here, not into the corpus folder."))
    return [
        *added,
        click.option(
            "--workers",
            type=click.IntRange(1),
            default=default_workers,
            show_default="the cores",
            help="Worker processes.",
        ),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace an output folder that holds another result (one that holds this result is kept).",
        ),
        json_option,
        click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
        debug_option,
    ]


def config_options(config_type: type[Any]) -> Callable[[Command], Command]:
    """Add one flag for each field of a stage's config; those that are given arrive as keyword arguments."""

    def decorate(command: Command) -> Command:
        kinds = field_types(config_type)
        for field in reversed(dataclasses.fields(config_type)):
            command = _config_option(field, kinds[field.name], spec_of(field))(command)
        return command

    return decorate


def flag_of(field: dataclasses.Field[Any]) -> str:
    """Return the flag of a config field: `--min-score` for `min_score`."""
    return spec_of(field).flag or "--" + field.name.replace("_", "-")


def stage_config(config_type: type[Config], stage: str, corpus: str, given: dict[str, Any]) -> Config:
    """Build a stage's config from its table in the corpus's `webtext.toml` and the flags that were given."""
    tables = corpus_tables(corpus)
    names = {field.name for field in dataclasses.fields(config_type)}  # type: ignore[arg-type]
    flags = {name: value for name, value in given.items() if name in names and value not in (None, ())}
    where = f"{join(corpus, CONFIG_FILE)} [{stage}]"
    return make_config(config_type, stage_table(tables, stage), flags, where, other_keys(stage))


def path_list(corpus: str, stage: str) -> list[str]:
    """Return the files that a stage's table of `webtext.toml` names; relative ones are meant from the corpus folder."""
    return stage_files(corpus, corpus_tables(corpus), stage)


def named_path(corpus: str, stage: str, key: str) -> str | None:
    """Return a file or folder that a stage's table of `webtext.toml` names, if it does."""
    return stage_paths(corpus, corpus_tables(corpus), stage).get(key)


def _config_option(field: dataclasses.Field[Any], kind: Any, spec: OptionSpec) -> Callable[[Any], Any]:
    flag = flag_of(field)
    default = field.default
    if kind is bool:
        names = f"{flag}/--no-{flag[2:]}" if default else flag
        shown = "on" if default else None
        return click.option(names, field.name, is_flag=True, default=None, help=_help(spec, shown), show_default=False)
    many = typing.get_origin(kind) is tuple
    if many:
        shown = ", ".join(typing.cast(tuple[str, ...], default)) or None
    else:
        shown = None if default in (None, "") else f"{default:g}" if isinstance(default, float) else str(default)
    return click.option(
        flag,
        field.name,
        type=click.Choice(spec.choices) if spec.choices else _click_type(kind, spec),
        multiple=many,
        default=None,
        help=_help(spec, shown) + (" (repeatable)" if many else ""),
    )


def _help(spec: OptionSpec, default: str | None) -> str:
    return spec.help if default is None else f"{spec.help} [default: {default}]"


def _click_type(kind: Any, spec: OptionSpec) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    if kind is int and (spec.minimum is not None or spec.maximum is not None):
        low = None if spec.minimum is None else int(spec.minimum)
        high = None if spec.maximum is None else int(spec.maximum)
        return click.IntRange(low, high)
    if kind is float and (spec.minimum is not None or spec.maximum is not None):
        return click.FloatRange(spec.minimum, spec.maximum)
    return {int: click.INT, float: click.FLOAT, str: click.STRING}.get(kind, click.STRING)
