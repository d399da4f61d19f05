"""Questions that a model answers by continuing a text. Paper, sections 3.5 (CoQA) and 3.8 (Natural Questions)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.core.config import option
from pipelines.core.errors import InputError
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.metrics import answer_f1, coqa_scores, exact_match
from pipelines.evaluation.records import Record, read_records
from pipelines.evaluation.task import Example, ExampleTask, Generation, Metric, Output


@dataclasses.dataclass(frozen=True)
class AnswerOptions:
    """The text that is continued, where the answer ends, and how it is compared."""

    layout: str = option(
        "records", "Form of the file: records, or dialogues about a story.", choices=("records", "coqa")
    )
    prompt: str = option("{question}", "Text that the model continues; a template with {field}.")
    gold: str = option("answer", "Field with the right answer, or a list of right answers.")
    cluster: str = option("", "Field that related examples have in common, for the standard error.")
    max_tokens: int = option(32, "Tokens of an answer at most.", minimum=1)
    until: tuple[str, ...] = option(("\n",), "Texts that end the answer; they are not part of it.")
    score: str = option("squad", "Rules by which answers are compared.", choices=("squad", "coqa"))


class _Turn(NamedTuple):
    prompt: str
    golds: Sequence[str]
    cluster: str
    place: str


class AnswerTask(ExampleTask):
    """Exact match and F1 of the most likely continuation, with the probability that the model gave it."""

    metrics = (Metric("f1", "mean", "f1"), Metric("exact_match", "mean", "exact_match"))

    def __init__(self, options: AnswerOptions, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        super().__init__(limit)
        self._options = options
        self._files = files
        self._encoder = encoder
        self.generation = Generation(options.max_tokens, options.until)

    def examples(self) -> Iterator[Example]:
        """See `ExampleTask`."""
        for turn in self._turns():
            prompt = self._encoder.prompt(turn.prompt)
            [request], cut = self._encoder.fit([prompt], self._options.max_tokens, turn.place)
            yield Example(
                turn.place,
                turn.cluster,
                turn.golds[0],
                [request],
                cut,
                functools.partial(self._measure, turn),
            )

    def _measure(self, turn: _Turn, outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
        [output] = outputs
        answer = answer_text(self._encoder.decode(output.tokens), self._options.until)
        self.counts["answers_cut"] += not output.ended
        if self._options.score == "coqa":
            matches, f1 = coqa_scores(answer, turn.golds)
        else:
            matches, f1 = float(exact_match(answer, turn.golds)), answer_f1(answer, turn.golds)
        return answer, {"f1": f1, "exact_match": matches}

    def _turns(self) -> Iterator[_Turn]:
        options = self._options
        for record in read_records(self._files):
            if options.layout == "coqa":
                yield from _coqa_turns(record)
                continue
            golds = _texts(record.value(options.gold), record.place)
            cluster = str(record.value(options.cluster)) if options.cluster else record.place
            yield _Turn(record.text(options.prompt), golds, cluster, record.place)


def answer_text(text: str, until: Sequence[str]) -> str:
    """Return a continuation up to the first text that ends it."""
    ends = [place for end in until if (place := text.find(end, len(text) - len(text.lstrip()))) >= 0]
    return text[: min(ends, default=len(text))].strip()


def _coqa_turns(record: Record) -> Iterator[_Turn]:
    """Yield the questions of a dialogue after its story and the earlier turns, with their gold answers."""
    questions, answers = record.value("questions"), record.value("answers")
    others = record.fields.get("additional_answers") or {}
    text = f"{record.value('story')}\n\n"
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        text += f"Q: {question['input_text']}\nA:"
        golds = [answer["input_text"], *(turns[number]["input_text"] for turns in others.values())]
        yield _Turn(text, golds, record.place, f"{record.place}.{number + 1}")
        text += f" {answer['input_text']}\n"


def _texts(value: Any, place: str) -> list[str]:
    texts = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    if not texts:
        raise InputError(f"{place}: has no right answer")
    return texts
