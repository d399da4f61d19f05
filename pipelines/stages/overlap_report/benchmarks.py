"""Benchmarks: named on the command line or in `webtext.toml`, their splits, and their examples as columns of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipelines.core import inputs, storage
from pipelines.core.errors import UsageError
from pipelines.stages.overlap_report.example_files import SUFFIXES, Texts, file_examples, file_kind
from pipelines.stages.overlap_report.hub import HubSplit, hub_examples, hub_fingerprint
from pipelines.stages.overlap_report.registry import (
    Entry,
    PaperFigures,
    find_entry,
    known_benchmarks,
    loose_name,
    nearest,
)
from pipelines.stages.overlap_report.text_fields import TextField

_FORM = "NAME=PATH, NAME:FIELD=PATH, NAME/SPLIT=PATH or NAME:train=PATH"
_ROLES = {"train": "train", "test": "test", "valid": "valid", "validation": "valid", "dev": "valid"}
_LIST = "`webtext overlap-report --list-benchmarks` shows those that are known by name"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark's name, its split if one was named, the field of its text, and its files or its set on the hub.

    `paper` is the row of the paper's Table 6 for a benchmark of that name.
    """

    name: str
    split: str | None
    field: str
    files: tuple[str, ...]
    hub: HubSplit | None = None
    paper: PaperFigures | None = None

    @property
    def label(self) -> str:
        """The name, with the split behind a slash."""
        return self.name if self.split is None else f"{self.name}/{self.split}"

    @property
    def fingerprint(self) -> str:
        """Hash of the content, and of the field that is read; a set on the hub is loaded for it."""
        content = inputs.fingerprint_files(self.files) if self.hub is None else hub_fingerprint(self.hub)
        return f"{self.field}:{content}"

    @property
    def source(self) -> str:
        """The first file, or the set on the hub: what messages name."""
        return self.files[0] if self.hub is None else self.hub.name

    @property
    def is_plain_text(self) -> bool:
        """Whether its first file is plain text, so that lines are its examples unless others are asked for."""
        return self.hub is None and file_kind(self.files[0]) == "txt"

    @property
    def text_field(self) -> TextField:
        """The field of its text, for the readers."""
        return TextField(self.field, self.label)


class ExampleBatch(NamedTuple):
    """Some examples: the number of the first, from 0, their texts without nulls, and where each stands."""

    first: int
    texts: pa.StringArray
    places: list[str]


class BenchmarkPart(NamedTuple):
    """A file of a benchmark, or its set on the hub: the name that places begin with, and the examples."""

    place: str
    texts: Iterator[Texts]


def parse_benchmarks(values: Sequence[str], known: Mapping[str, Entry] | None = None) -> list[Benchmark]:
    """Return the benchmarks that strings `NAME[/SPLIT][:SPLIT][:FIELD][=PATH]` mean.

    PATH is a file, a folder or a glob; without it the name is one of `known`, by default those of data/benchmarks.toml.
    After a colon, train, test, valid, validation and dev are a split, anything else is a field. Raises UsageError for
    a string of another form, an unknown name, or a name given twice, InputError for a path that means no file.
    """
    if not values:
        raise UsageError("overlap-report: no benchmark is given; name one with --benchmark NAME=PATH")
    entries = known_benchmarks() if known is None else known
    benchmarks = [_parse(value, entries) for value in values]
    labels = [benchmark.label for benchmark in benchmarks]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--benchmark: {label} is given twice; two splits of one benchmark are NAME/SPLIT=PATH")
    return benchmarks


def split_role(benchmark: Benchmark) -> str:
    """Return what a split is for: "train", "valid" or "test"; no name is a test, another name stands for itself."""
    if benchmark.split is None:
        return "test"
    return _ROLES.get(benchmark.split.lower(), benchmark.split.lower())


def with_own_train(benchmarks: Sequence[Benchmark]) -> tuple[list[Benchmark], dict[str, list[Benchmark]]]:
    """Return the benchmarks to audit and, by the label of each, the train splits of the same name.

    Such a train split is not audited itself; one without another split of its name is. Paper, Table 6, first row.
    """
    others = {loose_name(each.name) for each in benchmarks if split_role(each) != "train"}
    audited = [each for each in benchmarks if split_role(each) != "train" or loose_name(each.name) not in others]
    own: dict[str, list[Benchmark]] = {}
    for benchmark in audited:
        trains = [
            each for each in benchmarks if each not in audited and loose_name(each.name) == loose_name(benchmark.name)
        ]
        if trains:
            own[benchmark.label] = trains
    return audited, own


def read_example_batches(benchmark: Benchmark, example: str) -> Iterator[ExampleBatch]:
    """Yield the examples of a benchmark in the order of its files, at most 8,192 or about 16 MB at a time.

    `example` is auto (a line of a .txt, a record of JSONL and Parquet), line, paragraph, or document (all of a file). A
    line or paragraph without a word is none; a record that is null is an empty text. Raises InputError, with the place,
    for what cannot be read, lacks the field, or is an example of 2 GiB or more.
    """
    first = 0
    for part in benchmark_parts(benchmark, example):
        for texts, numbers in part.texts:
            yield ExampleBatch(first, texts, [f"{part.place}:{number}" for number in numbers.tolist()])
            first += len(texts)


def benchmark_parts(benchmark: Benchmark, example: str) -> Iterator[BenchmarkPart]:
    """Yield the files of a benchmark, or its set on the hub, each with its examples."""
    if benchmark.hub is not None:
        yield BenchmarkPart(benchmark.hub.name, hub_examples(benchmark.hub, benchmark.text_field, example))
    for path in benchmark.files:
        yield BenchmarkPart(storage.basename(path), file_examples(path, benchmark.text_field, example))


def _parse(value: str, known: Mapping[str, Entry]) -> Benchmark:
    left, equals, path = value.partition("=")
    name, split, field = _name_parts(left, value)
    if equals and not path:
        raise _wrong_form(value)
    entry = find_entry(name, known)
    if not equals:
        return _of_registry(value, entry, split, field, nearest(name, known))
    files = inputs.expand_paths([path], SUFFIXES)
    if field is not None and all(file_kind(file) == "txt" for file in files):
        raise UsageError(
            f"--benchmark: {value!r} names the field {field!r}, and plain text has none; a split that is not one of "
            f"{', '.join(_ROLES)} is named as {name}/{field}=PATH"
        )
    return _with_paper(Benchmark(name, split, field or "text", tuple(files)), entry)


def _name_parts(left: str, value: str) -> tuple[str, str | None, str | None]:
    """Return name, split and field of `NAME[/SPLIT][:SPLIT][:FIELD]`."""
    whole_name, *parts = left.split(":")
    name, slash, split = whole_name.partition("/")
    if parts and parts[0].lower() in _ROLES:
        if slash:
            raise UsageError(f"--benchmark: {value!r} names two splits, {split} and {parts[0]}; leave one out")
        split = parts.pop(0)
        slash = "/"
    if not name or len(parts) > 1 or "" in parts or (slash and not split) or "/" in split:
        raise _wrong_form(value)
    return name, split or None, parts[0] if parts else None


def _wrong_form(value: str, near: Sequence[str] = ()) -> UsageError:
    hint = f" (near: {', '.join(near)})" if near else ""
    return UsageError(
        f"--benchmark: {value!r} is not of the form {_FORM}, nor the name of a known benchmark{hint}; {_LIST}"
    )


def _of_registry(
    value: str, entry: Entry | None, split: str | None, field: str | None, near: Sequence[str]
) -> Benchmark:
    if entry is None:
        raise _wrong_form(value, near)
    theirs = _their_split(entry, split)
    return _with_paper(Benchmark(entry.name, theirs, field or entry.field, (), HubSplit(entry, theirs)), entry)


def _with_paper(benchmark: Benchmark, entry: Entry | None) -> Benchmark:
    """Return the benchmark with the paper's figures, which are of test sets."""
    if entry is None or split_role(benchmark) != "test":
        return benchmark
    return dataclasses.replace(benchmark, paper=entry.paper)


def _their_split(entry: Entry, split: str | None) -> str:
    """Return the split of a set that a name means: its own, or one that is for the same."""
    if split is None:
        return entry.splits[0]
    exact = [each for each in entry.splits if each.lower() == split.lower()]
    alike = [each for each in entry.splits if _ROLES.get(each) == _ROLES.get(split.lower(), "")]
    if exact or alike:
        return (exact or alike)[0]
    raise UsageError(f"--benchmark: {entry.name} has no split {split!r}; it has: {', '.join(entry.splits)}")
