"""Benchmarks: how the command line and `webtext.toml` name them, their splits, and their examples as columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.columns import text_arrays
from pipelines.benchmark_sets.examples import (
    SUFFIXES,
    Examples,
    TextField,
    example_format,
    file_examples,
    table_examples,
)
from pipelines.benchmark_sets.registry import Entry, HubSplit, PaperFigures, find_entry, known_benchmarks
from pipelines.errors import UsageError
from pipelines.format import loose_name, suggest_nearest
from pipelines.records import input_paths, inputs
from pipelines.records.text_columns import slices_within

_BATCH_EXAMPLES = 8192
_BATCH_BYTES = 16 << 20
_FORM = "NAME=PATH, NAME:FIELD=PATH, NAME/SPLIT=PATH or NAME:train=PATH"
_ROLES = {"train": "train", "test": "test", "valid": "valid", "validation": "valid", "dev": "valid"}
_LIST = "`webtext overlap-report --list-benchmarks` lists the known ones"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, its split if named, the field of its text, and its files or data set on the hub.

    `paper` has the figures of the paper's Table 6 for this benchmark.
    """

    name: str
    split: str | None
    field: str
    files: tuple[str, ...]
    hub: HubSplit | None = None
    paper: PaperFigures | None = None

    @property
    def label(self) -> str:
        """The name, followed by a slash and the split."""
        return self.name if self.split is None else f"{self.name}/{self.split}"

    @property
    def fingerprint(self) -> str:
        """Hash of the content and of the field; loads a data set of the hub."""
        content = inputs.fingerprint_files(self.files) if self.hub is None else self.hub.fingerprint
        return f"{self.field}:{content}"

    @property
    def source(self) -> str:
        """The first file, or the data set on the hub, as in messages."""
        return self.files[0] if self.hub is None else self.hub.name


class ExampleBatch(NamedTuple):
    """Some examples: the number of the first, from 0, their texts without nulls, and their places."""

    first: int
    texts: pa.StringArray
    places: list[str]


def parse_benchmarks(values: Sequence[str], known: Mapping[str, Entry] | None = None) -> list[Benchmark]:
    """Return the benchmarks of strings `NAME[/SPLIT][:SPLIT][:FIELD][=PATH]`.

    PATH is a file, a folder or a glob; without it, the name is one of `known`, by default of data/benchmarks.toml. A
    word after a colon is a split if it is train, test, valid, validation or dev, else a field. Raises UsageError for a
    string of another form, an unknown name, or a name used twice, InputError for a path without files.
    """
    if not values:
        raise UsageError("overlap-report: no benchmark; name one with --benchmark NAME=PATH")
    entries = known_benchmarks() if known is None else known
    benchmarks = [_parse(value, entries) for value in values]
    labels = [benchmark.label for benchmark in benchmarks]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--benchmark: {label} is named twice; name two splits of a benchmark NAME/SPLIT=PATH")
    return benchmarks


def split_role(split: str | None) -> str:
    """Return the role of a split: "train", "valid", "test" (also if it is unnamed), or its name in lower case."""
    name = (split or "test").lower()
    return _ROLES.get(name, name)


def parse_name(text: str, option: str) -> tuple[str, str | None, str | None] | None:
    """Return name, split and field of `NAME[/SPLIT][:SPLIT][:FIELD]`, None for another form.

    Raises UsageError, with the name of the option, for two splits.
    """
    whole_name, *parts = text.split(":")
    name, slash, split = whole_name.partition("/")
    if parts and parts[0].lower() in _ROLES:
        if slash:
            raise UsageError(f"{option}: {text!r} names two splits, {split} and {parts[0]}; remove one")
        split = parts.pop(0)
        slash = "/"
    if not name or len(parts) > 1 or "" in parts or (slash and not split) or "/" in split:
        return None
    return name, split or None, parts[0] if parts else None


def find_split(entry: Entry, split: str | None, option: str = "--benchmark") -> str:
    """Return the split of this name, or one of the same role; by default the first."""
    if split is None:
        return entry.splits[0]
    exact = [name for name in entry.splits if name.lower() == split.lower()]
    alike = [name for name in entry.splits if _ROLES.get(name) == _ROLES.get(split.lower(), "")]
    if exact or alike:
        return (exact or alike)[0]
    raise UsageError(f"{option}: {entry.name} has no split {split!r}; it has: {', '.join(entry.splits)}")


def separate_train_splits(benchmarks: Sequence[Benchmark]) -> tuple[list[Benchmark], dict[str, list[Benchmark]]]:
    """Return the benchmarks to audit and, by label, the train splits of the same name.

    A train split is only audited if no other split has its name. Paper, Table 6, first row.
    """
    others = {loose_name(benchmark.name) for benchmark in benchmarks if split_role(benchmark.split) != "train"}
    trains = [one for one in benchmarks if split_role(one.split) == "train" and loose_name(one.name) in others]
    audited = [benchmark for benchmark in benchmarks if benchmark not in trains]
    by_label = {
        benchmark.label: [train for train in trains if loose_name(train.name) == loose_name(benchmark.name)]
        for benchmark in audited
    }
    return audited, {label: splits for label, splits in by_label.items() if splits}


def read_example_batches(benchmark: Benchmark, example: str) -> Iterator[ExampleBatch]:
    """Yield the examples of a benchmark in the order of its files, at most 8,192 or about 16 MB at a time.

    An example is never split; that of a null is an empty text. See `file_examples` for `example`.
    """
    first = 0
    for where, parts in benchmark_parts(benchmark, example):
        name = storage.basename(where) if benchmark.files else where
        for texts, numbers in parts:
            for start, end in slices_within(text_arrays(texts)[1], _BATCH_BYTES, _BATCH_EXAMPLES):
                places = [f"{name}:{number}" for number in numbers[start:end].tolist()]
                yield ExampleBatch(first, texts[start:end], places)
                first += end - start


def benchmark_parts(benchmark: Benchmark, example: str) -> Iterator[tuple[str, Iterator[Examples]]]:
    """Yield the files of a benchmark, or its data set on the hub, with their examples."""
    field, hub = TextField(benchmark.field, benchmark.label), benchmark.hub
    for path in benchmark.files:
        yield path, file_examples(path, field, example)
    if hub is not None:
        batches = hub.batches(field.columns_in(hub.schema, hub.name))
        yield hub.name, table_examples(hub.name, batches, field, example)


def _parse(value: str, known: Mapping[str, Entry]) -> Benchmark:
    left, equals, path = value.partition("=")
    named = parse_name(left, "--benchmark")
    if named is None or (equals and not path):
        raise _form_error(value, "" if equals else f"write NAME={value} for a file")
    name, split, field = named
    entry = find_entry(name, known)
    if not equals:
        if entry is None:
            names = [alias for known_entry in known.values() for alias in (known_entry.name, *known_entry.aliases)]
            raise _form_error(value, suggest_nearest(name, names, ""))
        known_split = find_split(entry, split)
        hub = HubSplit(entry, known_split, f"--benchmark {entry.name}")
        benchmark = Benchmark(name=entry.name, split=known_split, field=field or entry.field, files=(), hub=hub)
    else:
        files = input_paths.expand_paths([path], SUFFIXES, check_types=False)
        if field is not None and all(example_format(file) == "text" for file in files):
            raise UsageError(
                f"--benchmark: {value!r} names the field {field!r}, but plain text has no fields; write a split other "
                f"than {', '.join(_ROLES)} as {name}/{field}=PATH"
            )
        benchmark = Benchmark(name, split, field or "text", tuple(files))
    # The paper's figures are of test sets.
    if entry is None or split_role(benchmark.split) != "test":
        return benchmark
    return dataclasses.replace(benchmark, paper=entry.paper)


def _form_error(value: str, hint: str = "") -> UsageError:
    problem = f"is neither of the form {_FORM} nor the name of a known benchmark"
    return UsageError(f"--benchmark: {value!r} {problem}{hint and f' ({hint})'}; {_LIST}")
