"""Texts that a model writes: answers, summaries and translations, and documents that it recites.

Paper, sections 3.5 (CoQA) to 3.8 (Natural Questions), and appendix 8.2 (recitation).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.metrics import Bleu, Metric, coqa_scores, squad_scores
from pipelines.evaluation.records import DocumentOptions, Documents, Record
from pipelines.evaluation.rouge import ROUGE_TYPES, check_rouge, rouge_scores
from pipelines.evaluation.task import Example, Fitted, Generation, Measured, Output, Request, ShotOptions, Task

# Where a sentence ends: a rule, not a model, which gives the same sentences everywhere. In tokenized text, a mark that
# is a word of its own ends one before any character, unless more marks follow; so do <q>, <t> and <s>. Such a mark
# after a single letter but "i", or between digits, is part of initials (`u.s .`) or of a number (`3 . 5`).
_SENTENCE_END = re.compile(
    r"((?<!(?<![^\s.])[A-HJ-Za-hj-z]\s\.)(?!(?<=\d\s\.)\s+\d)(?:(?<=[.!?])[\"')\]]*(?=\s+[\"'(\[]*[A-Z0-9])"
    r"|(?<=\s[.!?])(?<!\s[.!?]\s[.!?])(?:\s+(?:''|[\"')\]]|-rrb-)(?!\S))*(?!\s+[.!?])))\s+|</?[qst]>"
)
_SCORES: Mapping[str, tuple[Metric, ...]] = {
    "squad": (
        Metric("f1", "mean", "f1"),
        Metric("exact_match", "share", "exact_match"),
        Metric("calibration_error", "calibration_error", "exact_match", "confidence"),
        Metric("accuracy_at_1_percent", "confident_share", "exact_match", "confidence"),
    ),
    # Means over the right answers, each of which is left out once.
    "coqa": (Metric("f1", "mean", "f1"), Metric("exact_match", "mean", "exact_match")),
    "bleu": (Metric("bleu", "bleu", "bleu"),),
    "rouge": tuple(Metric(name, "mean", name) for name in (*ROUGE_TYPES, "rouge_mean")),
}


@dataclasses.dataclass(frozen=True)
class AnswerOptions(ShotOptions):
    """The text that is continued, where the answer ends, and how it is compared."""

    prompt: str = option("{question}", "Text that the model continues; a template with {field}.")
    hint: str = option("", "Text after the prompt that is never cut.")
    keep: str = option("end", "End of a prompt that is kept if the context is too short.", choices=("start", "end"))
    lead: bool = option(False, "The answer is the prompt's own first `sentences`: a baseline without the model.")
    gold: str = option("answer", "Field with the right answer, or a list of right answers; a template is possible.")
    max_tokens: int = option(32, "Tokens of an answer at most.", minimum=1)
    until: tuple[str, ...] = option(("\n",), "Texts that end the answer; they are not part of it.")
    sentences: int = option(0, "Number of sentences of the answer that count, from its start; 0: all.", minimum=0)
    top_k: int = option(1, "Draw one of the k most likely tokens; 1: take the most likely one.", minimum=1)
    seed: int = option(0, "Random seed of the draws.", minimum=0)
    score: str = option(
        "squad",
        "How answers are compared: by the rules of SQuAD or CoQA, as a translation (BLEU) or a summary (ROUGE).",
        choices=("squad", "coqa", "bleu", "rouge"),
    )
    count_end: bool = option(
        True,
        "Whether the confidence, the probability of the answer, includes the tokens that end it.",
        only_with="score=squad",
    )
    calibration_bins: int = option(
        10, "Bins of equally many answers for the calibration error.", minimum=1, only_with="score=squad"
    )
    separator: str = option("\n", "Text after every shot.")


class Turn(NamedTuple):
    """A question with its right answers, cluster and place, and the story and the earlier questions before it."""

    prompt: str
    golds: Sequence[str]
    cluster: str
    place: str
    story: str = ""
    history: Sequence[str] = ()

    def text(self, dropped: int = 0) -> str:
        """Return the whole prompt without the oldest turns of the history."""
        return self.story + "".join(self.history[dropped:]) + self.prompt


class AnswerTask(Task[AnswerOptions]):
    """Metrics of the continuations that a model writes."""

    takes_shots = True

    def _prepare(self) -> None:
        options = self.options
        if options.score == "rouge":
            check_rouge()
        self._bleu = Bleu() if options.score == "bleu" else None
        self._new_tokens = 1 if options.lead else options.max_tokens
        self.generation = Generation(self._new_tokens, options.until, options.top_k, options.seed)
        self.metrics = [metric._replace(bins=options.calibration_bins) for metric in _SCORES[options.score]]

    def solved(self, record: Record) -> str:
        """See `Task`."""
        turn = next(self._turns_of(record))
        return f"{(turn.text() + self.options.hint).rstrip()} {turn.golds[0]}"

    def examples(self) -> Iterator[Example]:
        """See `Task`."""
        for turn in (turn for record in self.records(self.files) for turn in self._turns_of(record)):
            measure = functools.partial(self._measure, turn)
            yield Example(turn.place, turn.cluster, turn.golds[0], self._fit_turn(turn), measure)

    def _fit_turn(self, turn: Turn) -> Fitted:
        """Drop shots, then the oldest turns, then a part of the prompt, so that the request fits into the context."""
        options, turns = self.options, len(turn.history)
        if options.lead:
            return Fitted([self.encoder.prompt("")])
        candidates = (
            Fitted(
                [self.encoder.prompt(before + turn.text(dropped) + options.hint)],
                counts={"shots_dropped": shots} | ({"turns_dropped": dropped} if turn.story else {}),
            )
            for dropped in range(turns + 1)
            for before, shots in self.texts_before()
        )
        fitted = self.encoder.fit(candidates, turn.place, self._new_tokens)
        if fitted.cut and options.keep == "start":
            text = options.instruction + turn.text(turns)
            return fitted._replace(requests=[self.encoder.shortened(text, options.hint, self._new_tokens, turn.place)])
        return fitted

    def _measure(self, turn: Turn, outputs: Sequence[Output]) -> Measured:
        [output] = outputs
        if self.options.lead:
            answer = self._first_sentences(turn.text())
        else:
            answer = self._answer(output.tokens)
            self.counts["answers_cut"] += not output.ended
        if self._bleu:
            counts = self._bleu.statistics(answer.replace("\n", " "), turn.golds)
            self.counts[f"sacrebleu {self._bleu.signature(len(turn.golds))}"] += 1
            return Measured(answer, {f"bleu_{number}": float(count) for number, count in enumerate(counts)})
        if self.options.score == "rouge":
            # A summary of several lines has a sentence per line.
            texts = [text if "\n" in text.strip() else "\n".join(_sentences(text)) for text in (answer, *turn.golds)]
            scores = rouge_scores(texts[0], texts[1:])
            return Measured(answer, {**scores, "rouge_mean": sum(scores.values()) / len(scores)})
        if self.options.score == "coqa":
            matches, f1 = coqa_scores(answer, turn.golds)
            return Measured(answer, {"f1": f1, "exact_match": matches})
        is_match, f1 = squad_scores(answer, turn.golds)
        return Measured(answer, {"f1": f1, "exact_match": is_match, "confidence": self._confidence(output, answer)})

    def _answer(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to where the answer ends."""
        text = self.encoder.decode([token for token in tokens if token != self.encoder.end_of_text]).lstrip()
        ends = [place for end in self.options.until if (place := text.find(end)) >= 0]
        return self._first_sentences(text[: min(ends, default=len(text))].strip())

    def _first_sentences(self, text: str) -> str:
        return "\n".join(_sentences(text)[: self.options.sentences]) if self.options.sentences else text

    def _confidence(self, output: Output, answer: str) -> float:
        """Return the probability of all tokens that were written, or of the first ones with the whole answer."""
        [log_probs] = output.log_probs
        count = len(log_probs)
        if answer and not self.options.count_end:  # an empty answer is its end
            count = next(size for size in range(count + 1) if self._answer(output.tokens[:size]) == answer)
        return math.exp(math.fsum(log_probs[:count]))

    def _turns_of(self, record: Record) -> Iterator[Turn]:
        options = self.options
        if options.layout == "coqa":
            yield from _coqa_turns(record)
            return
        gold = record.text(options.gold) if "{" in options.gold else record.value(options.gold)
        golds = [str(one) for one in gold] if isinstance(gold, list) else [str(gold)]
        if not golds:
            raise InputError(f"{record.place}: has no right answer")
        yield Turn(record.text(options.prompt), golds, options.cluster_of(record), record.place)


def _sentences(text: str) -> list[str]:
    return [sentence for line in _SENTENCE_END.sub(r"\1\n", text).splitlines() if (sentence := line.strip())]


def _coqa_turns(record: Record) -> Iterator[Turn]:
    """Yield the questions of a dialogue after its story and the earlier turns, with their gold answers."""
    others = [f"additional_answers.{name}" for name in record.fields.get("additional_answers") or {}]
    columns = {name: _turn_texts(record, name) for name in ("questions", "answers", *others)}
    if len({len(texts) for texts in columns.values()}) > 1:
        lengths = ", ".join(f"{len(texts)} {name}" for name, texts in columns.items())
        raise InputError(f"{record.place}: every question needs an answer, but there are {lengths}")
    history: list[str] = []
    for number, (question, *golds) in enumerate(zip(*columns.values(), strict=True), 1):
        prompt = f"Q: {question}\nA:"
        place = f"{record.place}.{number}"
        yield Turn(prompt, golds, record.place, place, f"{record.value('story')}\n\n", tuple(history))
        history.append(f"{prompt} {golds[0]}\n")


def _turn_texts(record: Record, name: str) -> list[str]:
    """Return the texts of all turns, in the format of the official file or of the Hugging Face hub."""
    turns = record.value(name)
    if isinstance(turns, Mapping):
        turns = turns.get("input_text")
    entries = turns if isinstance(turns, list) else []
    texts = [entry.get("input_text") if isinstance(entry, Mapping) else entry for entry in entries]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{record.place}: {name} is neither a list of texts nor of records with input_text")
    return [str(text) for text in texts]


@dataclasses.dataclass(frozen=True)
class RecitationOptions(DocumentOptions):
    """How much of a document is shown, and how much of the rest is compared."""

    prompt_tokens: int = option(
        0, "Tokens of the prompt, with <|endoftext|> first; 0: half of what fits into the context.", minimum=0
    )
    max_tokens: int = option(100, "Tokens of the continuation at most.", minimum=1)


class RecitationTask(Task[RecitationOptions]):
    """How far the greedy continuation of a document's beginning equals the document."""

    metrics = (
        Metric("common_prefix", "mean", "common_prefix"),
        Metric("token_accuracy", "mean", "token_accuracy"),
        Metric("recited", "share", "recited"),
    )

    def _prepare(self) -> None:
        options, context = self.options, self.encoder.context
        if options.prompt_tokens >= context:
            raise UsageError(
                f"prompt_tokens = {options.prompt_tokens}: leaves no room in the model's context of {context}"
            )
        self._documents = Documents(options, self.files)
        self.generation = Generation(options.max_tokens, ())

    def examples(self) -> Iterator[Example]:
        """See `Task`; a document that ends within the prompt is counted instead."""
        documents = iter(self._documents)
        self.counts = defaultdict(float, self._documents.counts)
        for text, place in documents:
            tokens = [self.encoder.end_of_text, *self.encoder.encode(text)][: self.encoder.context]
            size = self.options.prompt_tokens or len(tokens) // 2
            rest = tokens[size : size + self.options.max_tokens] if size else []
            if not rest:
                self.counts["documents_too_short"] += 1
                continue
            measure = functools.partial(self._measure, rest)
            yield Example(place, place, self.encoder.decode(rest), Fitted([Request(tokens[:size], [])]), measure)

    def _measure(self, rest: list[int], outputs: Sequence[Output]) -> Measured:
        tokens = outputs[0].tokens[: len(rest)]
        is_equal = [token == wanted for token, wanted in zip(tokens, rest, strict=False)]
        prefix = sum(itertools.takewhile(bool, is_equal))
        metrics = {"common_prefix": prefix, "token_accuracy": sum(is_equal) / len(rest), "recited": prefix == len(rest)}
        return Measured(self.encoder.decode(tokens), metrics)
