"""Classification without training or prompts: the label whose mean hidden state is most similar to that of the text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.engine.config import option
from pipelines.errors import UsageError
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.task import Example, ExampleTask, Metric, Output, Request
from pipelines.evaluation.tasks.layouts import LAYOUTS, gold_number

# Instead of a division by 0, for a model whose hidden states are all 0.
_SMALLEST_NORM = 1e-30


@dataclasses.dataclass(frozen=True)
class SimilarityOptions:
    """The text, the labels, and over which positions hidden states are averaged."""

    layout: str = option("records", "Form of the file.", choices=tuple(LAYOUTS))
    text: str = option("{text}", "Text that is classified; a template with {field}.")
    labels: tuple[str, ...] = option((), "Texts of the labels; templates with {field}.")
    gold: str = option("label", "Field with the right label: its number from 0, letter or text.")
    masked: bool = option(
        True,
        "Average over the tokens of a text alone. If false, <|endoftext|> tokens that pad it to the longest text or "
        "label of its example count, too.",
    )


class SimilarityTask(ExampleTask):
    """Accuracy of the label with the largest cosine similarity to the text.

    A text is represented by the mean over its tokens of the hidden states after the final norm. Texts that are longer
    than the context lose their end.
    """

    metrics = (Metric("accuracy", "share", "accuracy"), Metric("gold_similarity", "mean", "gold_similarity"))
    embeds = True

    def __init__(self, options: SimilarityOptions, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        super().__init__(limit)
        if len(options.labels) < 2:
            raise UsageError(f"labels: has {len(options.labels)} labels, expected at least 2")
        self._options = options
        self._files = files
        self._encoder = encoder

    def examples(self) -> Iterator[Example]:
        """See `ExampleTask`."""
        end, context = self._encoder.end_of_text, self._encoder.context
        for record in LAYOUTS[self._options.layout].read(self._files):
            labels = [record.text(label) for label in self._options.labels]
            gold = gold_number(record.value(self._options.gold), labels, record.place)
            texts = [record.text(self._options.text), *labels]
            encoded = [self._encoder.encode(text) or [end] for text in texts]
            kept = [tokens[:context] for tokens in encoded]
            size = 0 if self._options.masked else max(map(len, kept))
            requests = [Request([*tokens, *[end] * (size - len(tokens))], []) for tokens in kept]
            cut = max(map(len, encoded)) - max(map(len, kept))
            measure = functools.partial(_measure, gold, labels)
            yield Example(record.place, record.place, labels[gold].strip(), requests, cut, measure)


def _measure(gold: int, labels: Sequence[str], outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
    text, *others = (np.array(output.vector, np.float64) for output in outputs)
    norms = np.array([np.linalg.norm(text) * np.linalg.norm(other) for other in others])
    similarities = np.array([text @ other for other in others]) / np.maximum(norms, _SMALLEST_NORM)
    best = int(similarities.argmax())
    return labels[best].strip(), {"accuracy": best == gold, "gold_similarity": float(similarities[gold])}
