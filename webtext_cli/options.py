"""Options that commands share, and options generated from a stage's config dataclass."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from pipelines.build import write_index
from pipelines.corpus_config import CAN_BE_SKIPPED, CorpusConfig, RunSettings, check_corpus
from pipelines.engine.config import Config, OptionSpec, describe_range, flag_of, make_config, option_fields, spec_of
from pipelines.engine.executor import make_executor
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import UsageError
from pipelines.format import format_bytes
from pipelines.pipeline import BY_NAME
from pipelines.records.standard_input import STANDARD_INPUT, spool_standard_input
from pipelines.storage import basename, join, size_bytes, temporary_folder
from webtext_cli.console import make_progress, print_summary
from webtext_cli.parameters import Choice, Choices, Command, Number, Option

# What the value of an option is, if neither its type nor the last word of its name says so.
_METAVARS = {
    "against": "PATH", "pages": "PATH", "cc_index": "PATH", "urls": "FILE", "compare": "DIR", "set": "NAME=VALUE",
    "task": "NAME[/SPLIT][=PATH]", "examples": "NAME[=PATH]", "cc_records": "URL", "after": "DATE", "before": "DATE",
    "held_out": "SHARE", "reference_share": "SHARE", "archive_window": "DAYS", "max_document_mib": "MIB",
    "memory_limit_mib": "MIB", "max_page_bytes": "BYTES", "sample_bytes": "BYTES", "timeout": "SECONDS",
    "per_host_delay": "SECONDS", "max_wait": "SECONDS", "extra_domain": "DOMAIN",
    "text": "NAME=PATH", "tokenizer": "PATH", "preset": "NAME",
}  # fmt: skip
# A larger upper bound only prevents nonsense.
_MAX_SHOWN = 10_000
DOCUMENTS_HELP = (
    "Documents: a stage's folder, Parquet, Arrow, CSV, JSON, JSONL, text, WET, or globs; - is standard input"
)
Function = TypeVar("Function", bound=Callable[..., Any])
Corpus = TypeVar("Corpus", str, str | None)


@dataclasses.dataclass(frozen=True)
class StageCall:
    """A call of a stage's command: the values of the options that stages share, and the flags of its config.

    `flags` also has those of `RunSettings`. `build` and `demo`, which run several stages, have no `stage`.
    """

    stage: str
    flags: Mapping[str, Any]
    corpus: str
    overwrite: bool
    as_json: bool
    quiet: bool
    input: tuple[str, ...] = ()
    output: str | None = None
    discard_pages: bool = False

    @functools.cached_property
    def settings(self) -> CorpusConfig:
        """The corpus's `webtext.toml`."""
        return CorpusConfig(self.corpus)

    def config(self) -> Any:
        """Return the stage's config: its table in `webtext.toml`, overridden by flags."""
        config_type = BY_NAME[self.stage].config_type()
        return self.settings.options(self.stage, config_type, _flags_that_are_set(config_type, self.flags))

    def configured(self, **paths: Any) -> dict[str, Any]:
        """Return paths that options name, by default those of the stage's table in `webtext.toml`."""
        files = BY_NAME[self.stage].files
        defaults = self.settings.paths(self.stage) | ({files: list(self.settings.files(self.stage))} if files else {})
        return {key: path or defaults.get(key) for key, path in paths.items()}

    def output_folder(self, *others: str) -> str:
        """Return `--output`, or the stage's folder in the corpus; raise UsageError if an input overlaps with it."""
        output = self.output or join(self.corpus, self.stage)
        sources = [] if self.input else self.settings.sources(self.stage).values()
        check_disjoint(output, [*self.input, *(path for source in sources for path in _as_list(source)), *others])
        return output

    def input_files(self) -> list[str]:
        """Return the files that were named, or what the stage reads in the corpus; raise InputError without either."""
        if not self.input:
            check_corpus(self.corpus, "-i")
        source = None if self.input else self.settings.sources(self.stage)[BY_NAME[self.stage].main_input or ""]
        if isinstance(source, str):
            otherwise, stage = ", or name your files as arguments", basename(source)
            if stage in CAN_BE_SKIPPED:
                otherwise += f', or omit the stage: skip = ["{stage}"] below [build] in {self.settings.path}'
            from pipelines.records.inputs import check_finished  # deferred: pyarrow takes long to import

            check_finished(source, stage, otherwise)
        return with_standard_input(self.input, self.quiet) or _as_list(source)

    def run(self, **inputs: Any) -> Summary:
        """Run the stage on `inputs`, parameters of its function, and on `input_files`; print its summary."""
        stage = BY_NAME[self.stage]
        config = self.config()
        if stage.main_input and stage.main_input not in inputs:
            inputs[stage.main_input] = self.input_files()
        output = self.output_folder(*(path for key in stage.path_keys for path in _as_list(inputs.get(key))))
        gc.disable()
        run = stage.load()
        gc.freeze()  # modules stay, so no collection needs to examine them
        gc.enable()
        summary = run(config, **inputs, output=output, options=self.run_options())
        print_summary(summary, self.as_json)
        if not self.output:
            write_index(self.corpus, make_progress(self.quiet).note)
        return summary

    def run_options(self) -> RunOptions:
        """Return the executor, the progress display and what may be replaced, for a stage."""
        flags = _flags_that_are_set(RunSettings, self.flags)
        settings = self.settings.run_settings(flags)
        # An address in webtext.toml is that of the executor there.
        address = settings.ray_address if settings.executor == "ray" or "ray_address" in flags else None
        return RunOptions(
            make_executor(settings.workers, settings.executor, address),
            self.overwrite,
            make_progress(self.quiet),
            discard_pages=self.discard_pages,
            serial_if_tiny="workers" not in flags,
        )


def with_standard_input(paths: Sequence[str], quiet: bool = False) -> list[str]:
    """Return paths, with `-` replaced by a file of standard input that exists until the command ends."""
    if STANDARD_INPUT not in paths:
        return list(paths)
    spooled = spool_standard_input(click.get_current_context().with_resource(temporary_folder()))
    size = format_bytes(size_bytes(spooled))
    make_progress(quiet).note(f"standard input: {size} in {spooled} until the command ends")
    return [spooled if path == STANDARD_INPUT else path for path in paths]


def inputs_or_corpus(inputs: Sequence[str], corpus: Corpus) -> Corpus | list[str]:
    """Return what a command reads that takes either; raise UsageError if the user named both.

    A corpus that is the folder of a stage is an input.
    """
    source = click.get_current_context().get_parameter_source("corpus")
    if inputs and source is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--corpus cannot be combined with input files; use one")
    if corpus and not inputs and (has_manifest(corpus) or is_unfinished(corpus)):
        return [corpus]
    return with_standard_input(inputs) or corpus


def _as_list(source: str | Sequence[str] | None) -> list[str]:
    return [source] if isinstance(source, str) else list(source or ())


def check_disjoint(output: str, inputs: Sequence[str]) -> None:
    """Raise UsageError if an input is inside the output folder, or the output folder inside an input."""
    for path in inputs if output != "-" else ():
        if path != "-" and all(part == other for part, other in zip(_parts(output), _parts(path), strict=False)):
            is_same = _parts(path) == _parts(output)
            problem = "is both the input and the output" if is_same else f"input and output ({output}) overlap"
            raise UsageError(f"{path}: {problem}; choose another --output")


def _parts(path: str) -> list[str]:
    return (path if "://" in path else os.path.abspath(path)).rstrip("/").split("/")


def _add_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for add in reversed(options):
            command = add(command)
        return command

    return decorate


def corpus_option(command: Function, default: str = ".") -> Function:
    """Add `--corpus`."""
    return click.option(
        "--corpus",
        metavar="DIR",
        # A command with its own default folder (demo) must not write into a real corpus named by the environment.
        envvar="WEBTEXT_CORPUS" if default == "." else None,
        default=default,
        help="Corpus folder; each stage writes to its own folder inside it. [default: "
        + ("the current folder; env: WEBTEXT_CORPUS]" if default == "." else f"{default}]"),
    )(command)


def input_option(reads: str, is_argument: bool = True, is_many: bool = True) -> Callable[[Any], Any]:
    """Return the decorator that adds `--input`, and unless the command has other arguments, files as arguments."""
    option = click.option(
        "--input",
        "-i",
        metavar="PATH",
        multiple=True,
        callback=lambda context, _, paths: (*context.params.pop("files", ()), *paths),
        help=f"{reads}{'; may also be given as arguments' if is_argument and is_many else ''}."
        + " (repeatable)" * is_many,
    )
    # The argument is eager so that it is there when the option is processed, which has both.
    files = click.argument("files", nargs=-1, metavar="[PATH]..." if is_many else "[PATH]", is_eager=True)
    return lambda command: option(files(command) if is_argument else command)


# Goes below `stage_command`, which passes it on in `call`.
discard_pages_option = click.option(
    "--discard-pages",
    is_flag=True,
    help="With --overwrite, also delete fetched pages, which may no longer be on the web.",
)


_quiet_option = click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
overwrite_option = click.option(
    "--overwrite",
    is_flag=True,
    help="Replace an existing result built with different options or inputs, once the new one is complete.",
)


def output_options(
    json: str = "Print the result as one JSON object.", has_progress: bool = True
) -> Callable[[Any], Any]:
    """Add `--json` and, for a command with progress, `--quiet`."""
    json_option = click.option("--json", "as_json", is_flag=True, help=json)
    return _add_options([json_option, _quiet_option] if has_progress else [json_option])


def stage_command(
    name: str, reads: str | None = None, *, corpus: str | None = ".", has_tasks: bool = True
) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function with options of its own: add those of its stage and of all stages, passed as `call`.

    A command that is not a stage has no `--input` and `--output`. `reads` is the help of `--input`, `corpus` the
    default of `--corpus` (None: the command has none). Without tasks, the command reads one folder, without workers.
    """
    stage = name if name in BY_NAME else ""
    config_types = ([BY_NAME[stage].config_type()] if stage else []) + ([RunSettings] if has_tasks else [])
    flag_names = [field.name for config_type in config_types for field in dataclasses.fields(config_type)]
    added: list[Callable[[Any], Any]] = [*map(config_options, config_types)]
    added += [functools.partial(corpus_option, default=corpus)] if corpus is not None else []
    if reads is not None:
        added.append(input_option(reads, is_many=has_tasks))
    if stage:
        text = "Output folder, instead of the stage's folder in the corpus."
        added.append(click.option("--output", "-o", metavar="DIR", help=text))

    def decorate(function: Callable[..., Any]) -> Command:
        @functools.wraps(function)
        def wrapper(**values: Any) -> Any:
            flags = {name: values.pop(name) for name in flag_names}
            names = [field.name for field in dataclasses.fields(StageCall) if field.name in values]
            call = StageCall(stage, flags, **{name: values.pop(name) for name in names})
            return function(call=call, **values)

        # Where click collects the options of decorators, the last one first.
        own = wrapper.__dict__.pop("__click_params__", [])
        command = click.command(name, cls=Command)(_add_options([*added, overwrite_option, output_options()])(wrapper))
        command.params[:0] = reversed(own)
        return command

    return decorate


def config_options(config_type: type[Any]) -> Callable[[Any], Any]:
    """Add one flag per field of a config; flags that the user set arrive as keyword arguments."""
    kinds, group, options = typing.get_type_hints(config_type), "", []
    for field in option_fields(config_type):
        group = spec_of(field).group or group
        options.append(_config_option(field, kinds[field.name], group))
    return _add_options(options)


def config_of_flags(config_type: type[Config], flags: Mapping[str, Any]) -> Config:
    """Build a config from the flags that the user set."""
    return make_config(config_type, {}, _flags_that_are_set(config_type, flags), str)


def _flags_that_are_set(config_type: type[Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(config_type)}
    return {name: value for name, value in flags.items() if name in names and value not in (None, ())}


def _config_option(field: dataclasses.Field[Any], kind: Any, group: str) -> Callable[[Any], Any]:
    spec, flag, default = spec_of(field), flag_of(field.name), field.default
    properties: dict[str, Any] = {"cls": Option, "group": group, "default": None}
    if kind is bool:
        text = _help(spec, "on" if default else "")
        return click.option(f"{flag}/--no-{flag[2:]}" if default else flag, is_flag=True, help=text, **properties)
    multiple = typing.get_origin(kind) is tuple
    if multiple:
        shown = ", ".join(typing.cast(tuple[str, ...], default))
    else:
        form = {int: ",", float: "g"}.get(type(default), "")
        shown = "" if default is None else format(default, form).replace("e-0", "e-")
    number = next((member for member in (kind, *typing.get_args(kind)) if member in (int, float)), None)
    choice = Choices if multiple else Choice
    type_ = choice(spec.choices) if spec.choices else Number(number, spec.minimum, spec.maximum) if number else None
    if isinstance(type_, Choices):
        properties["callback"] = lambda _, __, lists: tuple(item for items in lists or () for item in items)
    envvar = "WEBTEXT_EXECUTOR" if field.name == "executor" else None
    return click.option(
        *([flag, "-n"] if field.name == "limit" else [flag]),
        field.name,
        type=type_,
        metavar=_METAVARS.get(field.name) or (None if type_ else field.name.upper().rpartition("_")[2]),
        multiple=multiple,
        envvar=envvar,
        help=_help(spec, shown, envvar),
        **properties,
    )


def _help(spec: OptionSpec, default: str, envvar: str | None = None) -> str:
    """Return the help of an option with its default, its environment variable and the limits that are not obvious."""
    minimum = spec.minimum if spec.minimum > 1 else -math.inf
    maximum = spec.maximum if spec.maximum != 1 and spec.maximum <= _MAX_SHOWN else math.inf
    environment = envvar and f"env: {envvar}"
    parts = filter(None, [default and f"default: {default}", environment, describe_range(minimum, maximum)])
    return f"{spec.help} [{'; '.join(parts)}]".removesuffix(" []").replace("] [", "; ")
