"""Multiple choice: which of several texts a model finds most likely. Paper, sections 3.2 (CBT) and 3.4 (Winograd)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.detokenizers import DETOKENIZERS, Detokenizer
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.records import Record
from pipelines.evaluation.task import Example, ExampleTask, Metric, Output, Request, total
from pipelines.evaluation.tasks.layouts import LAYOUTS, Question, gold_number


@dataclasses.dataclass(frozen=True)
class ChoiceOptions:
    """The texts of a question, and how its answers are compared."""

    layout: str = option("records", "Form of the file.", choices=tuple(LAYOUTS))
    prompt: str = option("", "Text before the choice; a template with {field}.")
    choices: tuple[str, ...] = option((), "Texts of the choices, templates with {field}; a single field may be a list.")
    rest: str = option("", "Text after the choice, a template.")
    gold: str = option("gold", "Field with the right choice: its number from 0, letter or text.")
    cluster: str = option("", "Field that related examples have in common, for the standard error.")
    scored: str = option(
        "choice",
        "Whether the choice and the rest are scored, only the rest, given the choice, or only the first token.",
        choices=("choice", "rest", "first-token"),
    )
    normalized: str = option(
        "sum",
        "What is compared: the log-probability, its mean per token or byte, or its ratio to that after `neutral`.",
        choices=("sum", "token", "byte", "ratio"),
    )
    neutral: str = option("Answer:", "Prompt that says nothing about the question, for the ratio.")
    detokenizer: str = option("none", "Rules that undo the tokenization of the file.", choices=tuple(DETOKENIZERS))
    first_gold: int = option(0, "Number of the first choice, where `gold` is a number.", minimum=0, maximum=1)
    instruction: str = option("", "Text before the first of the shots.")
    separator: str = option("\n\n", "Text after every shot.")
    content_free: tuple[str, ...] = option(
        (), "Inputs that say nothing, by which the choices are calibrated (Zhao et al. 2021); needs `input`."
    )
    input: tuple[str, ...] = option((), "Fields that they replace.")
    records: int = option(0, "Only the first so many records of the file; 0: all.", minimum=0)


class ChoiceTask(ExampleTask):
    """Accuracy of the most likely choice."""

    def __init__(self, options: ChoiceOptions, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        super().__init__(limit)
        self._options = options
        self._files = files
        self._encoder = encoder
        if options.detokenizer != "none" and options.layout == "winograd":
            raise UsageError("detokenizer: Winograd schemas are not tokenized")
        if options.content_free and (not options.input or options.normalized == "ratio"):
            raise UsageError("content_free needs `input`, the fields that it replaces, and no ratio")
        self._free_log_probs: npt.NDArray[np.float64] = np.zeros(0)
        self.instruction, self.separator = options.instruction, options.separator
        self.metrics: tuple[Metric, ...] = (
            Metric("accuracy", "share", "accuracy"),
            Metric("gold_nll", "mean", "gold_nll"),
        )
        if options.content_free:
            self.metrics = (*self.metrics, Metric("calibrated_accuracy", "share", "calibrated_accuracy"))
        if options.layout == "winograd":
            self.metrics = (*self.metrics, Metric("pair_accuracy", "cluster_share", "accuracy"))

    def solved(self, record: Record) -> str:
        """See `ExampleTask`."""
        question = self._question(record)
        return (question.prompt + question.choices[question.gold] + question.rest).strip()

    def examples(self) -> Iterator[Example]:
        """See `ExampleTask`: the first example also asks for the choices after inputs that say nothing."""
        options = self._options
        records = LAYOUTS[options.layout].read(self._files)
        for number, record in enumerate(itertools.islice(records, options.records or None)):
            question = self._question(record)
            if options.scored == "rest" and not question.rest.strip():
                raise InputError(f"{question.place}: has no text after the choice, which alone is scored")
            fitted = self.fit(functools.partial(self._requests, question), self._encoder, question.place)
            free: list[Request] = []
            for content in options.content_free if not number else ():
                neutral = self._question(
                    Record({**record.fields, **dict.fromkeys(options.input, content)}, record.place)
                )
                free += self.fit(functools.partial(self._requests, neutral), self._encoder, question.place).requests
            if options.normalized == "ratio":
                free = self._requests(question._replace(prompt=options.neutral), "")
            yield Example(
                question.place,
                question.cluster,
                question.names[question.gold].strip(),
                [*fitted.requests, *free],
                fitted.cut,
                functools.partial(self._measure, question),
                {"shots_dropped": fitted.shots_dropped, "lines_with_fallback": question.fallbacks},
            )

    def _requests(self, question: Question, before: str) -> list[Request]:
        texts = [(question.prompt, choice + question.rest) for choice in question.choices]
        if self._options.scored == "rest":
            texts = [(question.prompt + choice, question.rest) for choice in question.choices]
        requests = [self._encoder.scored(before + beginning, ending) for beginning, ending in texts]
        size = 1 if self._options.scored == "first-token" else None
        return [request._replace(continuations=[request.continuations[0][:size]]) for request in requests]

    def _measure(self, question: Question, outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
        log_probs = np.array([total(output) for output in outputs])
        lengths = np.ones(len(outputs))
        if self._options.normalized == "token":
            lengths = np.array([len(output.log_probs[0]) for output in outputs])
        elif self._options.normalized == "byte":
            scored = question.rest if self._options.scored == "rest" else None
            sizes = [len((scored or choice + question.rest).encode()) for choice in question.choices]
            lengths = np.resize(sizes, len(outputs))
        scores, *free = (log_probs / lengths).reshape(-1, len(question.choices))
        best = int((scores - free[0] if self._options.normalized == "ratio" else scores).argmax())
        metrics: dict[str, float | bool] = {"accuracy": best == question.gold, "gold_nll": -log_probs[question.gold]}
        if self._options.content_free:
            if free:
                # Of every input the probabilities of the choices, which add up to 1; then the sum over the inputs.
                shares = [one - np.logaddexp.reduce(one) for one in free]
                self._free_log_probs = np.logaddexp.reduce(shares)
            calibrated = int((scores - self._free_log_probs).argmax())
            metrics["calibrated_accuracy"] = calibrated == question.gold
        return question.names[best].strip(), metrics

    def _question(self, record: Record) -> Question:
        options, detokenizer = self._options, DETOKENIZERS[self._options.detokenizer]
        if question := LAYOUTS[options.layout].question:
            return question(record, detokenizer)
        if detokenizer.rules:
            fields = {name: _detokenized(detokenizer, value) for name, value in record.fields.items()}
            record = record._replace(fields=fields)
        choices = [self._choice(record, template) for template in options.choices]
        if len(choices) == 1 and isinstance(choices[0], list):
            choices = [f" {str(choice).lstrip()}" for choice in choices[0]]
        if len(choices) < 2:
            raise InputError(f"{record.place}: has {len(choices)} choices, expected at least 2")
        gold = gold_number(record.value(options.gold), choices, record.place, options.first_gold)
        if [choice.strip() for choice in choices].count(name := choices[gold].strip()) > 1:
            raise InputError(f"{record.place}: the right choice {name!r} is more than one of the choices")
        cluster = str(record.value(options.cluster)) if options.cluster else record.place
        prompt, rest = record.text(options.prompt), record.text(options.rest)
        return Question(prompt, choices, choices, rest, gold, cluster, record.place)

    @staticmethod
    def _choice(record: Record, template: str) -> Any:
        name = template.strip("{}")
        is_field = template == f"{{{name}}}"
        value = record.value(name) if is_field else None
        return value if isinstance(value, list) else record.text(template)


def _detokenized(detokenizer: Detokenizer, value: Any) -> Any:
    """Return a text, or the texts of a list, without tokenization and outer spaces; other values as they are."""
    if isinstance(value, list):
        return [_detokenized(detokenizer, part) for part in value]
    return detokenizer.detokenize(value).text.strip() if isinstance(value, str) else value
