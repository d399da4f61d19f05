"""Tasks as data: `data/tasks/NAME.toml`, or a file of the user, with a reason for every choice of the protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines import storage
from pipelines.benchmark_sets.benchmarks import find_split, parse_name, split_role
from pipelines.benchmark_sets.registry import HubSplit, find_entry
from pipelines.engine.config import Tables, check_known, convert, places, read_toml
from pipelines.engine.manifest import has_manifest
from pipelines.errors import UsageError
from pipelines.evaluation.records import SUFFIXES
from pipelines.format import loose_name, suggest_nearest
from pipelines.model.training.recipe import Choice
from pipelines.records import input_paths, inputs
from pipelines.storage.resources import data_names, data_path

# Variants are named after whose protocol they follow; the first is the default.
PAPER = "paper"
_FOLDER = "tasks"
TASK_NAMES = data_names(_FOLDER)
# The tables of a user's file, in which options have no reasons: for `webtext evaluate`, and for `webtext finetune`.
_FLAT, _FINETUNE, _PUBLISHED = "task", "finetune", "published"
OWN_KEYS = ("kind", "title", "data", "examples")  # its keys that are not options


@dataclasses.dataclass(frozen=True)
class PublishedFigure:
    """A figure of a fine-tuned model in percent, and where it was published."""

    value: float
    origin: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class TaskDefinition:
    """A task: how its examples become texts, what is scored, and the figures of the paper.

    `kind` names the function that runs it without training ("": none); `choices` are its options (`inferred`: from the
    figures of the paper), `finetune` those of `webtext finetune`, `variants` the different values of other protocols.
    `published` has figures of fine-tuned models by metric, which follows the part of the validation set, and by model;
    `paper` has, by metric, a figure for each of the four sizes, None where the paper only has a plot. `known_files`
    maps the SHA-256 of a file to what it is; `benchmark` is the name of the data set in data/benchmarks.toml, from
    which it is read if no file is named.
    """

    name: str
    title: str
    kind: str = ""
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)
    finetune: Mapping[str, Choice] = dataclasses.field(default_factory=dict)
    section: str = ""
    split: str = "test"
    note: str = ""
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    paper: Mapping[str, tuple[float | None, ...]] = dataclasses.field(default_factory=dict)
    published: Mapping[str, Mapping[str, PublishedFigure]] = dataclasses.field(default_factory=dict)
    known_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    benchmark: str | None = None
    aliases: tuple[str, ...] = ()
    data: str | None = None
    examples: str | None = None
    path: str = ""

    def values(self, variant: str) -> dict[str, Any]:
        """Return the options of a variant."""
        return {name: choice.value for name, choice in self.choices.items()} | dict(self.variants.get(variant, {}))


class TaskInput(NamedTuple):
    """A task, the variant of its protocol, its files, and the examples from which `shots` are drawn with `seed`.

    `split` is None if it was not named; then it is that of the protocol.
    """

    definition: TaskDefinition
    variant: str
    files: tuple[str, ...]
    examples: tuple[str, ...] = ()
    shots: int = 0
    seed: int = 0
    split: str | None = None

    @property
    def name(self) -> str:
        """The name of the task, followed by a slash and the split if that was named."""
        return self.definition.name if self.split is None else f"{self.definition.name}/{self.split}"

    @property
    def label(self) -> str:
        """The name of its folder: the task and split, followed by the variant if not the default, and the shots."""
        variant = "" if self.variant == PAPER else f".{self.variant}"
        shots = f".shots-{self.shots}-seed-{self.seed}" if self.shots else ""
        return self.name.replace("/", "-") + variant + shots


def parse_tasks(
    values: Sequence[str], variant: str, examples: Sequence[str] = (), shots: int = 0, shot_seeds: int = 1
) -> list[TaskInput]:
    """Return the tasks of strings `NAME[/SPLIT][:FIELD][=PATH]` or `FILE.toml`; the variant `all` is every variant.

    Without a path, the data set of that name in data/benchmarks.toml is read, which may download it. `examples` are
    strings of the same form. With `shots`, every task is run with `shot_seeds` different seeds.

    Raises UsageError for an unknown task or variant, and InputError for a path without files.
    """
    sources = [_parse_source(value, "data") for value in values]
    by_task = {source.definition.name: source.files for source in (_parse_source(one, "examples") for one in examples)}
    if len(by_task) < len(examples):
        raise UsageError("--examples: a task is named twice; name its files with commas between")
    if unknown := by_task.keys() - {source.definition.name for source in sources}:
        raise UsageError(f"--examples: no --task is named {min(unknown)}")
    tasks: list[TaskInput] = []
    for value, source in zip(values, sources, strict=True):
        task = source.definition
        if not task.kind:
            raise UsageError(f"--task {task.name}: has no protocol without training; use `webtext finetune`")
        known = [PAPER, *task.variants]
        check_known(PAPER if variant == "all" else variant, known, "variant", f"--variant of {task.name}")
        shown = by_task.get(task.name) or (find_files(task.examples) if task.examples else ())
        if set(map(storage.absolute_path, shown)) & set(map(storage.absolute_path, source.files)):
            raise UsageError(
                f"--examples of {task.name}: are the task's own, which would show the answers; use another file"
            )
        if shots and not shown:
            raise UsageError(f"--shots: give the file of the examples: --examples {value.partition('=')[0]}=PATH")
        tasks += [
            source._replace(variant=name, examples=shown, shots=shots, seed=seed)
            for name in (known if variant == "all" else [variant])
            for seed in range(shot_seeds if shots else 1)
        ]
    if not tasks:
        raise UsageError("no task; name one with --task NAME=PATH, or list them with --list-tasks")
    labels = [task.label for task in tasks]
    if repeated := {label for label in labels if labels.count(label) > 1}:
        raise UsageError(f"--task: {min(repeated)} is named twice")
    return tasks


def _parse_source(value: str, role: str) -> TaskInput:
    """Return what a string of --task (`role` data) or --examples names, in the form of overlap-report's benchmarks."""
    option = "--task" if role == "data" else "--examples"
    left, _, path = value.partition("=")
    if left.endswith(".toml"):
        task, split, field = find_task(left), None, None
    elif named := parse_name(left, option):
        name, split, field = named
        task = find_task(name)
    else:
        raise UsageError(f"{option}: {value!r} is not of the form NAME=PATH, NAME/SPLIT=PATH or NAME:FIELD=PATH")
    if path := path or getattr(task, role) or "":
        files = find_files(path)
    else:
        entry = find_entry(task.benchmark or "")
        if entry is None:
            raise UsageError(f"{option} {value}: name its file, {option} {value}=PATH")
        known = find_split(entry, split or (task.split if role == "data" else "train"), option)
        files = HubSplit(entry, known, f"{option} {value}").files
        field = field or ("text_field" in task.choices and entry.field) or None
    if field:
        if "text_field" not in task.choices:
            raise UsageError(f"{option}: {task.name} reads several fields, so {field!r} cannot be named")
        named_field = Choice(field, "chosen", "named with the file")
        task = dataclasses.replace(task, choices={**task.choices, "text_field": named_field})
    if split and split_role(split) != split_role(task.split):
        task = dataclasses.replace(task, paper={})  # the paper's figures are of another split
    return TaskInput(task, PAPER, files, split=split)


def find_files(path: str) -> tuple[str, ...]:
    """Return the files of a path, of several with commas between, or of a stage's folder."""
    if has_manifest(path):  # the folder of a stage has tables other than its documents, too
        return tuple(file.path for file in inputs.open_documents(path).files)
    paths = [path] if storage.exists(path) else path.split(",")
    return tuple(input_paths.expand_paths(paths, SUFFIXES, check_types=False))


def find_task(name: str) -> TaskDefinition:
    """Return the task of a name, of a name of its data set, or of a user's TOML file; raise UsageError for others."""
    if name.endswith(".toml"):
        return _read_own(name)
    tasks = [read_task(known) for known in TASK_NAMES]
    names = {known: task for task in tasks for known in (task.name, *task.aliases)}
    for task in tasks:
        entry = find_entry(task.benchmark or "")
        if entry is not None and entry.name == task.benchmark:
            names = dict.fromkeys((entry.name, *entry.aliases), task) | names
    by_name = {loose_name(known): task for known, task in names.items()}
    if loose_name(name) in by_name:
        return by_name[loose_name(name)]
    hint = suggest_nearest(name, names, "`webtext evaluate --list-tasks` lists them")
    raise UsageError(f"unknown task {name!r}; {hint}")


def read_task(name: str) -> TaskDefinition:
    """Return a task of data/tasks."""
    tables = _read_tables(name)
    path = data_path(f"{_FOLDER}/{name}.toml")
    table = {"name": name, "benchmark": name, **tables.pop(_FLAT), **tables, "path": path}
    task = convert(table, TaskDefinition, places(path))
    # TOML has no null: nan is a figure that the paper only drew.
    paper = {key: tuple(None if value != value else value for value in values) for key, values in task.paper.items()}
    return dataclasses.replace(task, paper=paper)


def _read_tables(name: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a task; kind, choices and variants default to those of the task named by `like`."""
    tables = read_toml(data_path(f"{_FOLDER}/{name}.toml"), Tables)
    if like := tables[_FLAT].pop("like", None):
        other = _read_tables(like)
        tables |= {key: other.get(key, {}) | tables.get(key, {}) for key in ("choices", "variants")}
        tables[_FLAT] = other[_FLAT] | tables[_FLAT]
    return tables


def _read_own(path: str) -> TaskDefinition:
    """Return the task of a user's file: a table [task] with `kind`, `data` and the options of that kind.

    [finetune] has the options of `webtext finetune`, [published] figures to compare with.
    """
    tables = read_toml(path, Tables)
    for name in tables:
        check_known(name, [_FLAT, _FINETUNE, _PUBLISHED], "table", places(path)([name]))
    table, name = tables.get(_FLAT, {}), storage.basename(path).removesuffix(".toml")
    own = {key: table.pop(key) for key in OWN_KEYS if key in table}
    own = {"title": "", **own, "name": name, "choices": {}, "path": path}
    task = convert(own, TaskDefinition, places(path, _FLAT))
    figures = tables.get(_PUBLISHED, {})
    published = convert(figures, dict[str, dict[str, PublishedFigure]], places(path, _PUBLISHED))
    # Paths are relative to the folder of the file.
    data, examples = (
        value if value is None or value.startswith("/") or "://" in value else storage.join(storage.parent(path), value)
        for value in (task.data, task.examples)
    )
    choices, finetune = (
        {key: Choice(value, "chosen", "") for key, value in values.items()}
        for values in (table, tables.get(_FINETUNE, {}))
    )
    return dataclasses.replace(
        task, title=task.title or name, choices=choices, finetune=finetune, data=data, examples=examples,
        published=published,
    )  # fmt: skip
