"""Requests to a model, as tokens; and tasks: their requests and the metrics of the answers."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.layouts import LAYOUTS
from pipelines.evaluation.metrics import Metric
from pipelines.evaluation.records import Record
from pipelines.format import mask_credentials
from pipelines.model.io.model_folder import TrainedModel
from pipelines.model.training.data import token_bytes
from pipelines.tokenizers.formats import load_tokenizer

Options = TypeVar("Options")


class Request(NamedTuple):
    """A text of at least one token, and the continuations that are scored after it."""

    prefix: Sequence[int]
    continuations: Sequence[Sequence[int]]


class Fitted(NamedTuple):
    """Requests, the tokens cut from each so that they fit into the context, and counts of what was dropped."""

    requests: Sequence[Request]
    cut: int = 0
    counts: Mapping[str, float] = {}


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What is known about a model without its weights, as in `results.json`."""

    path: str
    fingerprint: str
    parameters: int
    step: int | None
    context: int
    vocab_size: int
    end_of_text: int
    training: str = ""

    @classmethod
    def of(cls, trained: TrainedModel) -> ModelFacts:
        """Return the facts of a model."""
        size = trained.model.architecture
        # A checkpoint gets its held-out loss later, and is the finished model's if it is the last one.
        weights = dataclasses.replace(trained, config=vars(size), step=None, figures={})
        facts = mask_credentials(trained.path), weights.fingerprint(), trained.parameters, trained.step
        return cls(*facts, size.context, size.vocab_size, trained.end_of_text, hash_config(trained.config))


def hash_config(config: Mapping[str, Any]) -> str:
    """Return a hash of a model's config.json, which all checkpoints of a training have in common."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


class Encoder:
    """Encodes texts for a model: its tokenizer, context and the token that begins a text."""

    def __init__(self, tokenizer_json: bytes, facts: ModelFacts) -> None:
        self.tokenizer_json = tokenizer_json
        self.facts = facts
        self._tokenizer = load_tokenizer(tokenizer_json, facts.path)
        self._byte_lengths = token_bytes(tokenizer_json, facts.vocab_size)
        for id, token in self._tokenizer.get_added_tokens_decoder().items():
            if self._byte_lengths is not None:  # a text may have the name of a special token
                self._byte_lengths[id] = len(token.content.encode())
        self.context = facts.context
        self.end_of_text = facts.end_of_text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def byte_lengths(self, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the number of bytes of tokens; raise InputError if the tokenizer does not encode bytes."""
        if self._byte_lengths is None:
            raise InputError(f"{self.facts.path}: the tokenizer is not byte-level, so tokens have no place in a text")
        lengths: npt.NDArray[np.int64] = self._byte_lengths[list(tokens)]
        return lengths

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def scored(self, beginning: str, ending: str) -> Request:
        """Return the request for the probability of an ending after a beginning.

        Both are encoded together, as in a text, and divided at the end of the beginning; a token that spans it is
        scored. White space at the end of the beginning counts as part of the ending, since GPT-2's tokens begin with
        it. An empty beginning is the start of a document.
        """
        stripped = beginning.rstrip()
        start, whole = self.encode(stripped), self.encode(beginning + ending)
        if not stripped:
            start, whole = [self.end_of_text], [self.end_of_text, *whole]
        shared = next((at for at, pair in enumerate(zip(start, whole, strict=False)) if pair[0] != pair[1]), len(start))
        if not 0 < shared < len(whole):  # the first token reaches into the ending, or there is no ending
            shared, whole = 1, [self.end_of_text, *whole]
        return Request(whole[:shared], [whole[shared:]])

    def tokens_of(self, words: Collection[str]) -> tuple[int, ...]:
        """Return the tokens that are one of these words, in any case and with or without a space before it."""
        size = self._tokenizer.get_vocab_size()
        return tuple(token for token in range(size) if self.decode([token]).strip().lower() in words)

    def prompt(self, text: str) -> Request:
        """Return the request to continue a text."""
        return Request(self.encode(text.rstrip()) or [self.end_of_text], [])

    def shortened(self, text: str, hint: str, new_tokens: int, place: str) -> Request:
        """Return the request to continue a text whose end is cut before a hint, so that both fit into the context."""
        kept = self.encode(hint.rstrip())
        room = self.context - new_tokens - len(kept)
        if room < 1:
            raise self._no_room(place)
        return Request([*self.encode(text)[:room], *kept], [])

    def fit(self, candidates: Iterable[Fitted], place: str, new_tokens: int = 0) -> Fitted:
        """Return the first candidate that fits into the context with `new_tokens`, or else the last one, cut.

        All its beginnings are cut by the same number of tokens from the left. Raises InputError if what is scored or
        added does not fit.
        """
        for candidate in candidates:
            lengths = [
                len(prefix) + max((len(one) - 1 for one in scored), default=0) for prefix, scored in candidate.requests
            ]
            cut = max(0, max(lengths) + new_tokens - self.context)
            if not cut:
                return candidate
        if cut >= min(len(request.prefix) for request in candidate.requests):
            raise self._no_room(place)
        requests = [Request(request.prefix[cut:], request.continuations) for request in candidate.requests]
        return candidate._replace(requests=requests, cut=cut)

    def _no_room(self, place: str) -> InputError:
        return InputError(
            f"{place}: the scored or generated text does not fit into the model's context of {self.context}; drop the "
            "example out, or lower max_tokens"
        )


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """How records are read."""

    layout: str = option("records", "Form of the file.", choices=tuple(LAYOUTS))


@dataclasses.dataclass(frozen=True)
class ShotOptions(RecordOptions):
    """How related examples are found, and how solved examples precede a question."""

    cluster: str = option("", "Field that related examples have in common, for the standard error.")
    instruction: str = option("", "Text before the first of the shots.")
    separator: str = option("\n\n", "Text after every shot.")

    def cluster_of(self, record: Record) -> str:
        """Return the label of the cluster of a record, by default its place."""
        return str(record.value(self.cluster)) if self.cluster else record.place


class Output(NamedTuple):
    """What a model answered to a request.

    The log-probabilities of the tokens of each continuation, in nats, and whether they were the most likely ones; or
    of the tokens that the model itself wrote, which `ended` if they were not cut at the allowed number. Of tasks that
    embed texts, `vector` is the mean of the hidden states.
    """

    log_probs: list[list[float]]
    greedy: list[list[bool]]
    tokens: Sequence[int] = ()
    ended: bool = True
    vector: list[float] | None = None

    def total(self) -> float:
        """Return the log-probability of the only continuation, in nats."""
        return float(np.sum(np.array(self.log_probs[0], np.float64)))


class Row(NamedTuple):
    """An example with the model's answer: a row of `examples-00000.parquet`.

    Examples of a `cluster` depend on each other. `scored` counts the tokens of the answers, `cut` those that did not
    fit into the context.
    """

    example: int
    place: str
    cluster: str
    prompt: str
    gold: str
    output: str
    log_probs: list[list[float]]
    scored: int
    cut: int
    metrics: Mapping[str, float | bool]


class Generation(NamedTuple):
    """How texts are continued: by at most `max_tokens` tokens, until one of these strings.

    The most likely token is chosen, or one of the `top_k` most likely ones is drawn if that is above 1; never one of
    the `banned` tokens.
    """

    max_tokens: int
    until: tuple[str, ...]
    top_k: int = 1
    seed: int = 0
    banned: tuple[int, ...] = ()


class Measured(NamedTuple):
    """What the answers of an example result in: the output to report, and the metrics."""

    output: str
    metrics: Mapping[str, float | bool]


class Example(NamedTuple):
    """An example; `measure` takes the answers to its requests."""

    place: str
    cluster: str
    gold: str
    fitted: Fitted
    measure: Callable[[Sequence[Output]], Measured]


class Task(Generic[Options]):
    """A task on files for a given model's tokens, with at most `limit` examples; a subclass per kind of task.

    A subclass implements `examples`, or `requests` and `rows`, if it has several rows per request. `requests` are the
    same at every call, and `rows` takes the answers in their order. `counts` are of interest beyond the metrics, and
    complete after `rows`. Continuations are scored, unless texts are continued (`generation`) or embedded (`embeds`).
    """

    metrics: Sequence[Metric] = ()
    generation: Generation | None = None
    embeds = False
    takes_shots = False

    def __init__(self, options: Options, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        self.options = options
        self.files = files
        self.encoder = encoder
        self.limit = limit
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.shots: list[str] = []
        self._prepare()

    def _prepare(self) -> None:
        """Check the options, and derive from them what differs between the kinds of tasks."""

    def records(self, files: Sequence[str]) -> Iterator[Record]:
        """Read files in the form that the options name."""
        options: Any = self.options  # `RecordOptions`
        return LAYOUTS[options.layout](files)

    def solved(self, record: Record) -> str:
        """Return a record as a text with its answer, to be shown before other examples."""
        raise NotImplementedError

    def show(self, files: Sequence[str], shots: int, seed: int) -> None:
        """Show `shots` records of files, drawn at random, before every example; raise UsageError if there are fewer."""
        if not self.takes_shots:
            raise UsageError("this kind of task takes no examples")
        generator = random.Random(seed)
        drawn = heapq.nsmallest(shots, self.records(files), key=lambda _: generator.random())
        if len(drawn) < shots:
            raise UsageError(f"--shots {shots}: the file of examples has {len(drawn)}")
        self.shots = [self.solved(record) for record in drawn]

    def texts_before(self) -> Iterator[tuple[str, int]]:
        """Yield the text before an example with all shots, then with fewer and fewer, and how many were dropped."""
        options: Any = self.options  # `ShotOptions`
        for dropped in range(len(self.shots) + 1):
            yield options.instruction + "".join(shot + options.separator for shot in self.shots[dropped:]), dropped

    def examples(self) -> Iterator[Example]:
        """Yield the examples."""
        raise NotImplementedError

    def requests(self) -> Iterator[Request]:
        """Yield what the model is asked."""
        for example in itertools.islice(self.examples(), self.limit):
            yield from example.fitted.requests

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """Yield the examples with their metrics."""
        for number, example in enumerate(itertools.islice(self.examples(), self.limit)):
            answers = [next(outputs) for _ in example.fitted.requests]
            measured = example.measure(answers)
            for name, count in example.fitted.counts.items():
                self.counts[name] += count
            log_probs = [part for answer in answers for part in answer.log_probs]
            yield Row(
                example=number,
                place=example.place,
                cluster=example.cluster,
                prompt=prompt_hash(example.fitted.requests),
                gold=example.gold,
                output=measured.output,
                log_probs=log_probs,
                scored=sum(map(len, log_probs)),
                cut=example.fitted.cut,
                metrics=measured.metrics,
            )


def prompt_hash(requests: Iterable[Request]) -> str:
    """Return a hash of the tokens of requests, by which prompts can be compared."""
    digest = hashlib.sha256()
    for request in requests:
        for tokens in (request.prefix, *request.continuations):
            digest.update(np.array(tokens, "<u4").tobytes() + b"|")
    return digest.hexdigest()[:16]
