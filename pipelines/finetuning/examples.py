"""The examples of a task as sequences of tokens, from files in the forms in which they are distributed.

Radford et al. 2018, figure 1: a structured input becomes one sequence, or several that are computed independently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipelines import storage
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.layouts import gold_number
from pipelines.evaluation.records import Record
from pipelines.model.network.classifier import SPECIAL_TOKENS
from pipelines.model.network.gpt2 import Architecture
from pipelines.records import reader
from pipelines.records.drops import Drops

TRAIN, VALIDATION, TEST = "train", "validation", "test"
_ROLE = re.compile(r"(?<![a-z])(train|dev|valid(?:ation)?|val|test)(?![a-z])")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
# Of test sets, and of examples on which the annotators did not agree.
_HIDDEN_TARGETS = ("None", "", "-")
_HIDDEN_LABELS = (*_HIDDEN_TARGETS, "-1")
# RACE's official files have the questions of an article in lists; in the data set of the hub they are records.
_LISTED = {"questions": "question", "options": "options", "answers": "answer"}
Tokens = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class TransformOptions:
    """The table `[finetune]` of a task: which fields become which sequences, and how they are scored.

    A field is a name or a template with {field}. Of alternatives, the first that a record has is used, because a data
    set is distributed in several forms.
    """

    transform: str = option("single", "Form of the input.", choices=("single", "pair", "similarity", "choice"))
    text: tuple[str, ...] = option(("text",), "Fields of the text, or of the first of two.")
    question: tuple[str, ...] = option((), "Fields of a question that follows the first text, and is never cut.")
    other: tuple[str, ...] = option((), "Fields of the second text; for choice, of each candidate or a list.")
    gold: tuple[str, ...] = option(("label",), "Fields of the right label: its number, word or letter.")
    labels: tuple[str, ...] = option((), "Labels in order; | separates synonyms. Without labels: a number.")
    hidden: tuple[str, ...] = option((), "Numbers that stand for a hidden target.")
    first_gold: int = option(0, "Number of the first label or candidate.", minimum=0, maximum=1)
    metrics: tuple[str, ...] = option(
        ("accuracy",), "Metrics; the first selects the weights.",
        choices=("accuracy", "matthews", "f1", "pearson", "spearman"),
    )  # fmt: skip
    columns: tuple[str, ...] = option((), "Names of the columns of a file without a header.")
    txt: str = option("tsv", "Format of files with the suffix .txt.", choices=("tsv", "jsonl"))
    parts: tuple[str, ...] = option((), "Words in the names of validation files whose figures are reported separately.")
    submission: tuple[str, ...] = option(("predictions.tsv",), "Files of predictions for a test set, or for its parts.")
    submits: str = option("number", "How predictions name a label.", choices=("number", "word"))

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
        names = [name for label in self.labels for name in label.split("|")]
        if len(self.labels) == 1 or len(set(names)) < len(names):
            raise UsageError(f"{where}: expected two or more different labels, not {', '.join(names)}")


class Example(NamedTuple):
    """An example: its texts, its sequences of tokens, and its label, or the number to predict."""

    place: str
    text: str
    sequences: Sequence[Tokens]
    gold: float
    is_cut: bool = False


def arrange(
    transform: str, special: Sequence[int], size: int, text: Sequence[int], question: Sequence[int],
    others: Sequence[Sequence[int]],
) -> list[Tokens]:  # fmt: skip
    """Return the sequences of an example from its texts, each of which is cut to `size` tokens; see the module."""
    start, delimiter, extract = special
    text = [*text[: max(0, size - len(question))], *question]
    rows = [[text[:size], other[:size]] for other in others] or [[text[:size]]]
    rows += [rows[0][::-1]] if transform == "similarity" else []
    return [np.array([start, *first, *(id for text in more for id in (delimiter, *text)), extract], np.int32)
            for first, *more in rows]  # fmt: skip


def divide_by_role(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each role, train, validation or test, by the last word of their paths that names one.

    Only the paths below the folder that all have in common count. Raises UsageError for a file without such a word, and
    for a role with files of several formats or depths: data sets are distributed with copies of themselves.
    """
    roles: dict[str, list[str]] = {TRAIN: [], VALIDATION: [], TEST: []}
    kinds: dict[str, dict[tuple[str, int], str]] = {role: {} for role in roles}
    advice = "name the files, such as 'FOLDER/*.tsv', or name the dev files with --validation"
    for path, name in zip(files, storage.names_below_common_folder(files), strict=True):
        if not (words := _ROLE.findall(name.lower())):
            raise UsageError(f"{path}: its name does not say train, dev or test; {advice}")
        role = words[-1] if words[-1] in roles else VALIDATION
        roles[role].append(path)
        kinds[role].setdefault((reader.file_format(path), name.count("/")), path)
        if len(copies := list(kinds[role].values())) > 1:
            raise UsageError(f"{copies[0]}, {copies[1]}: may have the same {role} examples; {advice}")
    return roles


def read_examples(
    options: TransformOptions, files: Sequence[str], tokenizer: Tokenizer, size: Architecture, drops: Drops,
    *, labeled: bool = True,
) -> list[Example]:  # fmt: skip
    """Return the examples of files for a model; `drops` lists records that cannot be read or have no label.

    Unless `labeled`, labels are not read. The special tokens follow the model's vocabulary, and two texts fill its
    context. Raises InputError, with the first problem, if there are no examples, and if numbers of candidates differ.
    """
    examples: list[Example] = []
    special, text_tokens = range(size.vocab_size, size.vocab_size + SPECIAL_TOKENS), size.context // 2 - 2
    first_problem = ""
    for record in _records(options, files, drops):
        reason, problem, gold = "no_label", f"{record.place}: has no label", None
        try:
            texts, gold = _texts(options, record), _gold(options, record) if labeled else -1.0
        except InputError as error:
            reason, problem = "bad_record", str(error)
        if gold is None:
            first_problem = first_problem or problem
            drops.add(reason, record.place, detail=problem)
            continue
        encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
        text, question, *others = (encoding.ids for encoding in encoded)
        sequences = arrange(options.transform, special, text_tokens, text, question, others)
        if examples and len(sequences) != (expected := len(examples[0].sequences)):
            raise InputError(f"{record.place}: has {len(sequences)} candidates, earlier examples have {expected}")
        is_cut = max(map(len, [text + question, *others])) > text_tokens
        examples.append(Example(record.place, "\n".join(filter(None, texts)), sequences, gold, is_cut))
    if not examples:
        raise InputError(
            f"{files[0]}: the files have no example that can be used ({first_problem or 'they are empty'})"
        )
    return examples


def _records(options: TransformOptions, files: Sequence[str], drops: Drops) -> Iterator[Record]:
    for path, name in zip(files, storage.names_below_common_folder(files), strict=True):
        form = options.txt if reader.file_format(path) == "text" else None
        for number, value, content in reader.read_records(path, form, default_header=options.columns):
            place = f"{name}:{number}"
            if isinstance(value, reader.BadRecord) and content.strip() == b"{":
                raise InputError(f"{path}:{number}: an object of several lines; write one per line, as `jq -c .` does")
            if isinstance(value, reader.BadRecord) or not isinstance(value, Mapping):
                bad = value if isinstance(value, reader.BadRecord) else reader.BadRecord("bad_record", "not a record")
                drops.add(bad.reason, place, detail=bad.detail)
            elif isinstance(value.get("questions"), list):
                lists = [value[key] if isinstance(value.get(key), list) else [] for key in _LISTED]
                if len(set(map(len, lists))) > 1:
                    drops.add("bad_record", place, detail=f"{', '.join(_LISTED)}: expected lists of equal length")
                    continue
                for index, parts in enumerate(zip(*lists, strict=True)):
                    yield Record({**value, **dict(zip(_LISTED.values(), parts, strict=True))}, f"{place}.{index}")
            else:
                yield Record(value, place)


def _texts(options: TransformOptions, record: Record) -> list[str]:
    """Return the text, the question ("" if there is none), and the other texts of a record."""
    question = _field(record, options.question) if options.question else ""
    others = [_field(record, options.other)] if options.other and options.transform != "choice" else []
    if options.transform == "choice" and len(others := _candidates(options, record)) < 2:
        raise InputError(f"{record.place}: has {len(others)} candidates, expected at least 2")
    texts = [_field(record, options.text), question, *others]
    if replace_surrogates("".join(texts)) != "".join(texts):
        raise InputError(f"{record.place}: is not UTF-8")
    return texts


def _candidates(options: TransformOptions, record: Record) -> list[str]:
    listed = len(options.other) == 1
    return record.texts(options.other[0]) if listed else [_field(record, [other]) for other in options.other]


def _field(record: Record, alternatives: Sequence[str]) -> str:
    """Return the first of alternative fields that a record has; raise InputError if it has none, or for null."""
    for name in alternatives:
        names = _PLACEHOLDER.findall(name) or [name]
        if all(part in record.fields for part in names):
            return record.text(name) if names != [name] else str(record.value(name)).strip()
    known = ", ".join(map(repr, record.fields))
    raise InputError(f"{record.place}: has none of the fields {', '.join(alternatives)}; its fields are {known}")


def _gold(options: TransformOptions, record: Record) -> float | None:
    """Return the number of the label, or the number to predict; None if it is hidden, InputError if it is unknown."""
    name = next((name for name in options.gold if name in record.fields), options.gold[0])
    value = str(record.fields.get(name, "")).strip()
    for index, label in enumerate(options.labels):
        if value in label.split("|"):
            return index
    if options.is_regression:
        if value in (*_HIDDEN_TARGETS, *options.hidden):
            return None
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(value)):
                return number
        raise InputError(f"{record.place}: {name} is {value[:40]!r}, expected a number")
    if (number_text := value.removesuffix(".0")) in _HIDDEN_LABELS:
        return None
    if number_text != value:  # numbers of a column in which some are missing, as pandas writes them
        record = record._replace(fields={**record.fields, name: number_text})
    return gold_number(record, name, options.labels or _candidates(options, record), options.first_gold)
