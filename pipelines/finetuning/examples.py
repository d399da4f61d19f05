"""The examples of a task as sequences of tokens, from files in the forms in which they are distributed.

Radford et al. 2018, figure 1: a structured input becomes one sequence, or several that are computed independently.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.layouts import gold_number
from pipelines.evaluation.records import Record
from pipelines.records import reader
from pipelines.records.drops import Drops

TRAIN, VALIDATION = "train", "validation"
_ROLE = re.compile(r"(?<![a-z])(train|dev|valid(?:ation)?|val|test)(?![a-z])", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_HIDDEN = ("", "-", "-1", "-1.0")
# RACE's official files have the questions of an article in lists; in the data set of the hub they are records.
_LISTED = {"questions": "question", "options": "options", "answers": "answer"}
Encode = Callable[[Sequence[str]], list[list[int]]]
Tokens = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class TransformOptions:
    """The table `[finetune]` of a task: which fields become which sequences, and how they are scored.

    A field is a name or a template with {field}; of several, the first that a record has counts: the forms in which a
    data set is distributed differ.
    """

    transform: str = option("single", "Form of the input.", choices=("single", "pair", "similarity", "choice"))
    text: tuple[str, ...] = option(("text",), "Fields of the text, or of the first of two.")
    question: tuple[str, ...] = option((), "Fields of a question that follows the first text, and is never cut.")
    other: tuple[str, ...] = option((), "Fields of the second text; of choice, each candidate or a list of them.")
    gold: tuple[str, ...] = option(("label",), "Fields of the right label: its number, word or letter.")
    labels: tuple[str, ...] = option((), "Labels in order; words that mean the same with | between. None: a number.")
    first_gold: int = option(0, "Number of the first label or candidate.", minimum=0, maximum=1)
    metrics: tuple[str, ...] = option(
        ("accuracy",), "Metrics; the first selects the weights.",
        choices=("accuracy", "matthews", "f1", "pearson", "spearman"),
    )  # fmt: skip
    columns: tuple[str, ...] = option((), "Names of the columns of a file without a header.")
    txt: str = option("tsv", "Format of files with the suffix .txt.", choices=("tsv", "jsonl"))
    parts: tuple[str, ...] = option((), "Words in the names of validation files whose figures are reported apart.")

    @property
    def outputs(self) -> int:
        """Outputs of the head."""
        return max(1, len(self.labels))

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return self.transform != "choice" and not self.labels

    def check(self, where: str) -> None:
        """Raise UsageError for options that contradict each other."""
        if (self.transform == "single") == bool(self.other):
            raise UsageError(f"{where}: transform {self.transform} {'has no' if self.other else 'needs'} other")
        if self.transform == "choice" and self.labels:
            raise UsageError(f"{where}: the candidates of transform choice are its labels; omit labels")


class Example(NamedTuple):
    """An example: its sequences of tokens, and its label, or the number to predict."""

    place: str
    sequences: tuple[Tokens, ...]
    gold: float

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(map(len, self.sequences))


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How encoded texts become sequences: by a transform, with the special tokens from id `first` on."""

    transform: str
    first: int
    text_tokens: int

    def sequences(self, text: Sequence[int], question: Sequence[int], others: Sequence[Sequence[int]]) -> list[Tokens]:
        """Return the sequences of an example; every text is cut to `text_tokens`."""
        start, delimiter, extract = range(self.first, self.first + 3)
        size = self.text_tokens
        text = [*text[: max(0, size - len(question))], *question[:size]]
        pairs: list[tuple[Sequence[int], ...]] = [(text, other[:size]) for other in others] or [(text,)]
        if self.transform == "similarity":
            pairs = [pairs[0], pairs[0][::-1]]
        rows = [[start, *pair[0], *(id for other in pair[1:] for id in (delimiter, *other)), extract] for pair in pairs]
        return [np.array(row, np.int32) for row in rows]


def divide_by_role(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each role, train, validation or test, by the last word of their paths that names one.

    Only the paths below the folder that all have in common count. Raises UsageError for a file without such a word.
    """
    roles: dict[str, list[str]] = {TRAIN: [], VALIDATION: [], "test": []}
    for path, name in zip(files, storage.names_below_common_folder(files), strict=True):
        if not (words := _ROLE.findall(name)):
            raise UsageError(
                f"{path}: its name does not say train, dev or test; name the files with --validation apart"
            )
        role = words[-1].lower()
        roles[role if role in roles else VALIDATION].append(path)
    return roles


def read_examples(
    options: TransformOptions, files: Sequence[str], encode: Encode, arrangement: Arrangement, drops: Drops
) -> list[Example]:
    """Return the examples of files; `drops` counts and lists records that cannot be read or have no label.

    Raises InputError if there are none, with the first problem, or if numbers of candidates differ.
    """
    examples: list[Example] = []
    problem = ""
    for record in _records(options, files, drops):
        try:
            texts, gold = _texts(options, record), _gold(options, record)
        except InputError as error:
            problem = problem or str(error)
            drops.add("bad_record", record.place, detail=str(error))
            continue
        if gold is None:
            problem = problem or f"{record.place}: has no label"
            drops.add("no_label", record.place)
            continue
        text, question, *others = encode(texts)
        sequences = tuple(arrangement.sequences(text, question, others))
        if examples and len(sequences) != len(examples[0].sequences):
            found, expected = len(sequences), len(examples[0].sequences)
            raise InputError(f"{record.place}: has {found} candidates, earlier examples have {expected}")
        examples.append(Example(record.place, sequences, gold))
    if not examples:
        reason = problem or f"{dict(drops.counts) or 'the files are empty'}"
        raise InputError(f"{files[0]}: has no example that can be used ({reason})")
    return examples


def _records(options: TransformOptions, files: Sequence[str], drops: Drops) -> Iterator[Record]:
    for path, name in zip(files, storage.names_below_common_folder(files), strict=True):
        form = reader.file_format(path)
        form = options.txt if form == "text" else form
        for number, value, _ in reader.read_records(path, form, default_header=options.columns):
            place = f"{name}:{number}"
            if isinstance(value, reader.BadRecord):
                drops.add(value.reason, place, detail=value.detail)
            elif not isinstance(value, Mapping):
                drops.add("bad_record", place, detail="is not a record")
            elif isinstance(value.get("questions"), list):
                lists = [value.get(key) for key in _LISTED]
                for index, parts in enumerate(zip(*map(_as_list, lists), strict=False)):
                    yield Record({**value, **dict(zip(_LISTED.values(), parts, strict=True))}, f"{place}.{index}")
            else:
                yield Record(value, place)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(options: TransformOptions, record: Record) -> list[str]:
    """Return the text, the question ("" if there is none), and the other texts of a record."""
    question = _field(record, options.question) if options.question else ""
    others: list[str] = []
    if options.transform != "choice":
        others = [_field(record, options.other)] if options.other else []
    elif len(options.other) > 1:
        others = [_field(record, [other]) for other in options.other]
    else:
        others = record.texts(options.other[0])
        if len(others) < 2:
            raise InputError(f"{record.place}: has {len(others)} candidates, expected at least 2")
    return [_field(record, options.text), question, *others]


def _field(record: Record, alternatives: Sequence[str]) -> str:
    """Return the first of alternative fields that a record has; raise InputError if it has none, or for null."""
    for name in alternatives:
        names = _PLACEHOLDER.findall(name) or [name]
        if all(part in record.fields for part in names):
            return record.text(name) if names != [name] else str(record.value(name)).strip()
    raise InputError(f"{record.place}: has none of the fields {', '.join(alternatives)}")


def _gold(options: TransformOptions, record: Record) -> float | None:
    """Return the label's number, or the number to predict; None if it is hidden, or the annotators did not agree."""
    name = next((name for name in options.gold if name in record.fields), None)
    value = None if name is None else record.fields[name]
    if name is None or value is None or str(value).strip() in _HIDDEN:
        return None
    if options.is_regression:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{record.place}: {name} is {str(value)[:40]!r}, expected a number")
        return number
    words = {word: number for number, label in enumerate(options.labels) for word in label.split("|")}
    if (number_of_word := words.get(str(value).strip())) is not None:
        return number_of_word
    candidates = options.labels or (options.other if len(options.other) > 1 else tuple(record.texts(options.other[0])))
    return gold_number(record, name, candidates, options.first_gold)
