"""Whether a sentence is acceptable, by the mean log-probability of its tokens (CoLA). GPT-1 paper, section 5."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.metrics import best_threshold
from pipelines.evaluation.records import Record
from pipelines.evaluation.task import Example, ExampleTask, Metric, Output, Row, total
from pipelines.evaluation.tasks.layouts import LAYOUTS


@dataclasses.dataclass(frozen=True)
class AcceptabilityOptions:
    """The fields of a record."""

    layout: str = option("records", "Form of the file.", choices=tuple(LAYOUTS))
    text: str = option("{sentence}", "The sentence; a template with {field}.")
    gold: str = option("label", "Field with 1 for an acceptable sentence, 0 for another.")


class AcceptabilityTask(ExampleTask):
    """Area under the ROC curve, and Matthews' correlation at the best threshold.

    With a file of examples (`--examples`) also at the threshold that is best there.
    """

    def __init__(
        self, options: AcceptabilityOptions, files: Sequence[str], encoder: Encoder, limit: int | None
    ) -> None:
        super().__init__(limit)
        self._options = options
        self._files = files
        self._encoder = encoder
        self._train: Sequence[Record] = ()
        self.metrics: tuple[Metric, ...] = (
            Metric("roc_area", "roc_area", "label", "score"),
            Metric("best_matthews", "best_matthews", "label", "score"),
        )

    def show(self, records: Iterable[Record], shots: int, seed: int) -> None:
        """Take the threshold from these records; see `ExampleTask`."""
        if shots:
            raise UsageError("this kind of task takes no --shots; its examples are for the threshold")
        self._train = list(records)
        self._limit = None if self._limit is None else self._limit + len(self._train)
        self.metrics = (*self.metrics, Metric("matthews", "matthews", "label", "predicted"))

    def examples(self) -> Iterator[Example]:
        """See `ExampleTask`: those of the training file come first."""
        for record in (*self._train, *LAYOUTS[self._options.layout].read(self._files)):
            label = str(record.value(self._options.gold))
            if label not in ("0", "1"):
                raise InputError(f"{record.place}: the label {label!r} is neither 0 nor 1")
            scored = [self._encoder.scored("", record.text(self._options.text))]
            requests, cut = self._encoder.fit(scored, 0, record.place)
            yield Example(record.place, record.place, label, requests, cut, functools.partial(_measure, label))

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """See `Task.rows`."""
        rows = super().rows(outputs)
        train = [next(rows).metrics for _ in self._train]
        threshold = 0.0
        if train:
            threshold, _ = best_threshold([row["label"] for row in train], [row["score"] for row in train])
        for row in rows:
            predicted = {"predicted": float(row.metrics["score"] >= threshold)} if train else {}
            yield dataclasses.replace(row, example=row.example - len(train), metrics={**row.metrics, **predicted})


def _measure(label: str, outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
    [output] = outputs
    return "", {"label": float(label), "score": total(output) / len(output.log_probs[0])}
