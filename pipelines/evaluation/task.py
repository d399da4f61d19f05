"""What a task asks of a model, and what it makes of the answers."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from pipelines.errors import UsageError
from pipelines.evaluation.metrics import BLEU_COUNTS
from pipelines.evaluation.records import Record

if TYPE_CHECKING:
    from pipelines.evaluation.encoding import Encoder


class Request(NamedTuple):
    """A text, with at least one token, and the continuations that are scored after it."""

    prefix: Sequence[int]
    continuations: Sequence[Sequence[int]]


class Output(NamedTuple):
    """What a model answered to a request.

    Of every continuation the log-probabilities of its tokens, in nats, and whether they were the most likely ones; or
    those of the tokens that the model itself continued with. `ended` if it was not cut at the allowed number. Of tasks
    that embed texts, `vector` is the mean of the hidden states.
    """

    log_probs: list[list[float]]
    greedy: list[list[bool]]
    tokens: list[int]
    ended: bool
    vector: list[float] | None = None


class Metric(NamedTuple):
    """A figure of a task: the mean of a column of the rows, or a ratio of the sums of two.

    `kind` is share (of true values), mean, perplexity (exp of the ratio), nats (the ratio) or bits (the ratio in bits);
    the last three have a column of nats and one of `units`. Of all examples together are bleu, and matthews,
    best_matthews and roc_area, which have a column of labels and one of predictions or scores. Of right answers and
    the confidence in them are calibration_error (in so many `bins`) and confident_share.
    """

    name: str
    kind: str
    column: str
    units: str = ""
    unit: str = ""
    bins: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows from which it is computed."""
        if self.kind == "bleu":
            return tuple(f"{self.column}_{number}" for number in range(BLEU_COUNTS))
        return (self.column, self.units) if self.units else (self.column,)


@dataclasses.dataclass(frozen=True)
class Row:
    """An example with what the model made of it, as in the records.

    `cluster` names what depends on each other; `scored` counts the tokens of the answers, `cut` those that the context
    had no room for.
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
    """How texts are continued: at most so many tokens, until one of these strings.

    The most likely tokens are taken, or one of the `top_k` most likely ones is drawn if that is above 1; never one of
    the `banned` tokens.
    """

    max_tokens: int
    until: tuple[str, ...]
    top_k: int = 1
    seed: int = 0
    banned: tuple[int, ...] = ()


class Task(Protocol):
    """A task on given files for a given model's tokens.

    `requests` are the same at every call, and `rows` takes the answers in their order. `counts` are of interest beyond
    the metrics, complete after `rows`.
    """

    counts: defaultdict[str, float]

    @property
    def metrics(self) -> Sequence[Metric]:
        """The figures of the task."""

    @property
    def generation(self) -> Generation | None:
        """How texts are continued, None if continuations are scored."""

    @property
    def embeds(self) -> bool:
        """Whether the hidden states of the texts are wanted, and nothing after them."""

    def requests(self) -> Iterator[Request]:
        """Yield what the model is asked."""

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """Yield the examples with their metrics."""


class Fitted(NamedTuple):
    """Requests that fit into the context: how many tokens of them were cut, and how many shots left out."""

    requests: list[Request]
    cut: int
    shots_dropped: int


class Example(NamedTuple):
    """An example whose answers are measured without regard to others."""

    place: str
    cluster: str
    gold: str
    requests: Sequence[Request]
    cut: int
    measure: Callable[[Sequence[Output]], tuple[str, Mapping[str, float | bool]]]
    counts: Mapping[str, float] = {}


class ExampleTask:
    """A task of examples, at most `limit`, that are measured one by one; a kind of task implements `examples`."""

    metrics: Sequence[Metric] = ()
    generation: Generation | None = None
    embeds: bool = False
    instruction: str = ""
    separator: str = "\n\n"

    def __init__(self, limit: int | None) -> None:
        self.counts: defaultdict[str, float] = defaultdict(float)
        self._limit = limit
        self._solved: list[str] = []

    def solved(self, record: Record) -> str:
        """Return a record as a text with its answer, as an example for others."""
        raise UsageError("this kind of task takes no examples (--shots)")

    def show(self, records: Iterable[Record], shots: int, seed: int) -> None:
        """Put so many of these records, drawn at random, before every example; raise UsageError if there are fewer."""
        generator = random.Random(seed)
        drawn = heapq.nsmallest(shots, records, key=lambda _: generator.random())
        if len(drawn) < shots:
            raise UsageError(f"--shots {shots}: the file of examples has {len(drawn)}")
        self._solved = [self.solved(record) for record in drawn]

    def fit(
        self, build: Callable[[str], Sequence[Request]], encoder: Encoder, place: str, new_tokens: int = 0
    ) -> Fitted:
        """Return the requests that `build` makes of the text before an example, with as many shots as fit whole."""
        for dropped in range(len(self._solved) + 1):
            shown = "".join(text + self.separator for text in self._solved[dropped:])
            requests, cut = encoder.fit(build(self.instruction + shown), new_tokens, place)
            if not cut:
                break
        return Fitted(requests, cut, dropped)

    def examples(self) -> Iterator[Example]:
        """Yield the examples."""
        raise NotImplementedError

    def requests(self) -> Iterator[Request]:
        """See `Task.requests`."""
        for example in itertools.islice(self.examples(), self._limit):
            yield from example.requests

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """See `Task.rows`."""
        for number, example in enumerate(itertools.islice(self.examples(), self._limit)):
            answers = [next(outputs) for _ in example.requests]
            output, metrics = example.measure(answers)
            for name, count in example.counts.items():
                self.counts[name] += count
            log_probs = [part for answer in answers for part in answer.log_probs]
            yield Row(
                example=number,
                place=example.place,
                cluster=example.cluster,
                prompt=prompt_hash(example.requests),
                gold=example.gold,
                output=output,
                log_probs=log_probs,
                scored=sum(map(len, log_probs)),
                cut=example.cut,
                metrics=metrics,
            )


def prompt_hash(requests: Sequence[Request]) -> str:
    """Return a hash of the tokens of requests, by which prompts can be compared."""
    digest = hashlib.sha256()
    for request in requests:
        for tokens in (request.prefix, *request.continuations):
            digest.update(np.array(tokens, "<u4").tobytes() + b"|")
    return digest.hexdigest()[:16]


def total(output: Output, continuation: int = 0) -> float:
    """Return the log-probability of a continuation, in nats."""
    return float(np.sum(np.array(output.log_probs[continuation], np.float64)))
