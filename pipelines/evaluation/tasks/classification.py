"""Which of several texts a model prefers, and which sentences it finds acceptable.

Paper, sections 3.2 (CBT) and 3.4 (Winograd); GPT-1 paper, section 5 (CoLA); Zhao et al. 2021 (calibration).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.detokenizers import DETOKENIZERS, Detokenizer
from pipelines.evaluation.layouts import QUESTIONS, Question, gold_number
from pipelines.evaluation.metrics import Metric, best_threshold
from pipelines.evaluation.records import Record
from pipelines.evaluation.task import Example, Fitted, Measured, Output, RecordOptions, Request, Row, ShotOptions, Task

# Instead of a division by 0, for a model whose hidden states are all 0.
_SMALLEST_NORM = 1e-30


@dataclasses.dataclass(frozen=True)
class ChoiceOptions(ShotOptions):
    """The texts of a question, and how its answers are compared."""

    prompt: str = option("", "Text before the choice; a template with {field}.")
    choices: tuple[str, ...] = option((), "Texts of the choices, templates with {field}; a single field may be a list.")
    rest: str = option("", "Text after the choice, a template.")
    gold: str = option("gold", "Field with the right choice: its number from 0, letter or text.")
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
    neutral: str = option("Answer:", "Prompt without content, for the ratio.", only_with="normalized=ratio")
    detokenizer: str = option("none", "Rules that undo the tokenization of the file.", choices=tuple(DETOKENIZERS))
    first_gold: int = option(0, "Number of the first choice, where `gold` is a number.", minimum=0, maximum=1)
    content_free: tuple[str, ...] = option(
        (),
        "Inputs without content, by which the choices are calibrated (Zhao et al. 2021); needs `input`.",
        only_with="input",
    )
    input: tuple[str, ...] = option((), "Fields replaced by `content_free`.")
    records: int = option(0, "Maximum records of the file; 0: all.", minimum=0)


class ChoiceTask(Task[ChoiceOptions]):
    """Accuracy of the most likely choice, and how likely the right one is.

    `accuracy` compares the choices as `normalized` says; `accuracy_normalized`, by the log-probability per character of
    what is scored, without the space before it (acc_norm of lm-evaluation-harness); `gold_probability` is the softmax
    over their log-probabilities, `margin` the distance in nats to the best wrong one; `gold_bits_per_byte` counts the
    bytes of what is scored, with that space.
    """

    takes_shots = True

    def _prepare(self) -> None:
        options = self.options
        if options.detokenizer != "none" and options.layout == "winograd":
            raise UsageError("detokenizer: Winograd schemas are not tokenized")
        if options.content_free and options.normalized == "ratio":
            raise UsageError("content_free: cannot be combined with a ratio, which calibrates by `neutral`")
        self._free_log_probs: npt.NDArray[np.float64] = np.zeros(0)
        self.metrics = [Metric("accuracy", "share", "accuracy"), Metric("gold_nll", "mean", "gold_nll")]
        self.metrics += [Metric(name, "mean", name) for name in ("gold_probability", "margin")]
        if options.scored == "choice":  # else all choices have the same length
            self.metrics.insert(1, Metric("accuracy_normalized", "share", "accuracy_normalized", unit="character"))
        if options.scored != "first-token":
            self.metrics.append(Metric("gold_bits_per_byte", "bits", "gold_nll", "gold_bytes", "byte"))
        if options.content_free:
            self.metrics.append(Metric("calibrated_accuracy", "share", "calibrated_accuracy"))
        if options.layout == "winograd":
            self.metrics.append(Metric("pair_accuracy", "cluster_share", "accuracy", unit="pair"))

    def solved(self, record: Record) -> str:
        """See `Task`."""
        question = self._question(record)
        return (question.prompt + question.choices[question.gold] + question.rest).strip()

    def examples(self) -> Iterator[Example]:
        """See `Task`; the first example also asks for the choices after inputs without content."""
        options = self.options
        for number, record in enumerate(itertools.islice(self.records(self.files), options.records or None)):
            question = self._question(record)
            if options.scored == "rest" and not question.rest.strip():
                raise InputError(f"{question.place}: has no text after the choice, which is what is scored")
            fitted = self._fit(question)
            free: list[Request] = []
            for content in options.content_free if not number else ():
                fields = {**record.fields, **dict.fromkeys(options.input, content)}
                neutral = self._question(record._replace(fields=fields))
                free += self._fit(neutral).requests
            if options.normalized == "ratio":
                free = self._requests(question._replace(prompt=options.neutral), "")
            counts = {"lines_with_fallback": question.fallbacks, "right_by_chance": 1 / len(question.choices)}
            counts["right_choice_repeated"] = question.names.count(question.names[question.gold]) - 1
            fitted = Fitted([*fitted.requests, *free], fitted.cut, {**fitted.counts, **counts})
            gold, measure = question.names[question.gold].strip(), functools.partial(self._measure, question)
            yield Example(question.place, question.cluster, gold, fitted, measure)

    def _fit(self, question: Question) -> Fitted:
        candidates = (
            Fitted(self._requests(question, before), counts={"shots_dropped": dropped})
            for before, dropped in self.texts_before()
        )
        return self.encoder.fit(candidates, question.place)

    def _requests(self, question: Question, before: str) -> list[Request]:
        requests = [self.encoder.scored(before + beginning, ending) for beginning, ending in self._texts(question)]
        size = 1 if self.options.scored == "first-token" else None
        return [request._replace(continuations=[request.continuations[0][:size]]) for request in requests]

    def _texts(self, question: Question) -> list[tuple[str, str]]:
        """Return what precedes the scored text, and that text, for each choice."""
        if self.options.scored == "rest":
            return [(question.prompt + choice, question.rest) for choice in question.choices]
        return [(question.prompt, choice + question.rest) for choice in question.choices]

    def _measure(self, question: Question, outputs: Sequence[Output]) -> Measured:
        options = self.options
        log_probs = np.array([output.total() for output in outputs])
        endings, gold = [ending for _, ending in self._texts(question)], question.gold
        lengths = np.ones(len(outputs))
        if options.normalized == "token":
            lengths = np.array([len(output.log_probs[0]) for output in outputs])
        elif options.normalized == "byte":
            lengths = np.resize([len(ending.encode()) for ending in endings], len(outputs))
        scores, *free = (log_probs / lengths).reshape(-1, len(endings))
        best = int((scores - free[0] if options.normalized == "ratio" else scores).argmax())
        totals = log_probs[: len(endings)]
        characters = [max(1, len(ending.removeprefix(" "))) for ending in endings]
        metrics: dict[str, float | bool] = {
            "accuracy": best == gold,
            "gold_nll": -totals[gold],
            "gold_probability": float(np.exp(totals[gold] - np.logaddexp.reduce(totals))),
            "margin": totals[gold] - np.delete(totals, gold).max(),
            "gold_bytes": len(endings[gold].encode()),
            "accuracy_normalized": int((totals / characters).argmax()) == gold,
        }
        if options.content_free:
            if free:
                # The probabilities of the choices sum to 1 per input; then the sum over the inputs.
                shares = [one - np.logaddexp.reduce(one) for one in free]
                self._free_log_probs = np.logaddexp.reduce(shares)
            metrics["calibrated_accuracy"] = int((scores - self._free_log_probs).argmax()) == gold
        return Measured(question.names[best].strip(), metrics)

    def _question(self, record: Record) -> Question:
        options, detokenizer = self.options, DETOKENIZERS[self.options.detokenizer]
        if question := QUESTIONS.get(options.layout):
            return question(record, detokenizer)
        if detokenizer.rules:
            fields = {name: _detokenized(detokenizer, value) for name, value in record.fields.items()}
            record = record._replace(fields=fields)
        choices = [record.text(template) for template in options.choices]
        if len(choices) == 1 and (field := re.fullmatch(r"\{([^{}]+)\}", options.choices[0])):
            value = record.value(field[1])
            # A data set in its own form is scored as it is, like by lm-evaluation-harness.
            strip = str.lstrip if options.layout == "records" else str
            choices = [f" {strip(str(choice))}" for choice in value] if isinstance(value, list) else choices
        if len(choices) < 2:
            raise InputError(f"{record.place}: has {len(choices)} choices, expected at least 2")
        gold = gold_number(record, options.gold, choices, options.first_gold)
        # A user can correct his own records; in those of a data set, it is counted.
        names = [choice.strip() for choice in choices]
        if options.layout == "records" and names.count(name := names[gold]) > 1:
            raise InputError(f"{record.place}: the right choice {name!r} is among the choices more than once")
        prompt, rest = record.text(options.prompt), record.text(options.rest)
        return Question(prompt, choices, choices, rest, gold, options.cluster_of(record), record.place)


def _detokenized(detokenizer: Detokenizer, value: Any) -> Any:
    """Return a text, or the texts of a list, de-tokenized and stripped; other values unchanged."""
    if isinstance(value, list):
        return [_detokenized(detokenizer, part) for part in value]
    return detokenizer.detokenize(value).text.strip() if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True)
class SimilarityOptions(RecordOptions):
    """The text, the labels, and over which positions hidden states are averaged."""

    text: str = option("{text}", "Text that is classified; a template with {field}.")
    labels: tuple[str, ...] = option((), "Texts of the labels; templates with {field}.")
    gold: str = option("label", "Field with the right label: its number from 0, letter or text.")
    masked: bool = option(
        True,
        "Average over the tokens of a text alone. If false, <|endoftext|> tokens that pad it to the longest text or "
        "label of its example count, too.",
    )


class SimilarityTask(Task[SimilarityOptions]):
    """Accuracy of the label with the largest cosine similarity to the text, without training or prompts.

    A text is represented by the mean over its tokens of the hidden states after the final norm. Texts that are longer
    than the context lose their end.
    """

    metrics = (Metric("accuracy", "share", "accuracy"), Metric("gold_similarity", "mean", "gold_similarity"))
    embeds = True

    def examples(self) -> Iterator[Example]:
        """See `Task`."""
        options, end = self.options, self.encoder.end_of_text
        if len(options.labels) < 2:
            raise UsageError(f"labels: has {len(options.labels)} labels, expected at least 2")
        for record in self.records(self.files):
            labels = [record.text(label) for label in options.labels]
            gold = gold_number(record, options.gold, labels)
            encoded = [self.encoder.encode(text) or [end] for text in (record.text(options.text), *labels)]
            kept = [tokens[: self.encoder.context] for tokens in encoded]
            size = 0 if options.masked else max(map(len, kept))
            requests = [Request([*tokens, *[end] * (size - len(tokens))], []) for tokens in kept]
            cut = max(map(len, encoded)) - max(map(len, kept))
            measure = functools.partial(_measure_similarity, gold, labels)
            fitted = Fitted(requests, cut, {"right_by_chance": 1 / len(labels)})
            yield Example(record.place, record.place, labels[gold].strip(), fitted, measure)


def _measure_similarity(gold: int, labels: Sequence[str], outputs: Sequence[Output]) -> Measured:
    text, *others = (np.array(output.vector, np.float64) for output in outputs)
    norms = np.array([np.linalg.norm(text) * np.linalg.norm(other) for other in others])
    similarities = np.array([text @ other for other in others]) / np.maximum(norms, _SMALLEST_NORM)
    best = int(similarities.argmax())
    return Measured(labels[best].strip(), {"accuracy": best == gold, "gold_similarity": float(similarities[gold])})


@dataclasses.dataclass(frozen=True)
class AcceptabilityOptions(RecordOptions):
    """The fields of a record."""

    text: str = option("{sentence}", "The sentence; a template with {field}.")
    gold: str = option("label", "Field with 1 for an acceptable sentence, 0 for another.")


class AcceptabilityTask(Task[AcceptabilityOptions]):
    """Area under the ROC curve, and Matthews' correlation at the best threshold, of the mean log-probability per token.

    With a file of examples (`--examples`) also the correlation at the threshold that is best there.
    """

    metrics: Sequence[Metric] = (
        Metric("roc_area", "roc_area", "label", "score"),
        Metric("best_matthews", "best_matthews", "label", "score"),
    )
    _train: Sequence[Record] = ()

    def show(self, files: Sequence[str], shots: int, seed: int) -> None:
        """Take the threshold from the records of these files; see `Task`."""
        if shots:
            raise UsageError("this kind of task takes no --shots; its examples are for the threshold")
        self._train = list(self.records(files))
        self.limit = None if self.limit is None else self.limit + len(self._train)
        self.metrics = (*self.metrics, Metric("matthews", "matthews", "label", "predicted"))

    def examples(self) -> Iterator[Example]:
        """See `Task`: those of the training file come first."""
        for record in (*self._train, *self.records(self.files)):
            label = gold_number(record, self.options.gold, ("0", "1"))
            request = self.encoder.scored("", record.text(self.options.text))
            fitted = self.encoder.fit([Fitted([request])], record.place)
            measure = functools.partial(_measure_sentence, float(label))
            yield Example(record.place, record.place, str(label), fitted, measure)

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """See `Task`."""
        rows = super().rows(outputs)
        train = [next(rows).metrics for _ in self._train]
        if not train:
            yield from rows
            return
        threshold, _ = best_threshold([row["label"] for row in train], [row["score"] for row in train])
        for row in rows:
            metrics = {**row.metrics, "predicted": float(row.metrics["score"] >= threshold)}
            yield row._replace(example=row.example - len(train), metrics=metrics)


def _measure_sentence(label: float, outputs: Sequence[Output]) -> Measured:
    [output] = outputs
    return Measured("", {"label": label, "score": output.total() / len(output.log_probs[0])})
