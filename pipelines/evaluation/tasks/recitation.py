"""Documents that a model knows by heart: it continues their first half. Paper, appendix 8.2."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from pipelines.engine.config import option
from pipelines.errors import UsageError
from pipelines.evaluation.documents import DocumentOptions, Documents
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.task import Example, ExampleTask, Generation, Metric, Output, Request


@dataclasses.dataclass(frozen=True)
class RecitationOptions(DocumentOptions):
    """How much of a document is shown, and how much of the rest is compared."""

    prompt_tokens: int = option(
        0, "Tokens of the prompt, with <|endoftext|> first; 0: half of what fits into the context.", minimum=0
    )
    max_tokens: int = option(100, "Tokens of the continuation at most.", minimum=1)


class RecitationTask(ExampleTask):
    """How far the most likely continuation of a document's beginning is the document's own."""

    metrics = (
        Metric("common_prefix", "mean", "common_prefix"),
        Metric("token_accuracy", "mean", "token_accuracy"),
        Metric("recited", "share", "recited"),
    )

    def __init__(self, options: RecitationOptions, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        super().__init__(limit)
        if options.prompt_tokens >= encoder.context:
            raise UsageError(
                f"prompt_tokens = {options.prompt_tokens}: leaves no room in the model's context of {encoder.context}"
            )
        self._options = options
        self._source = Documents(options, files)
        self._encoder = encoder
        self.generation = Generation(options.max_tokens, ())

    def examples(self) -> Iterator[Example]:
        """See `ExampleTask`; a document that ends within the prompt is counted instead."""
        documents = iter(self._source)
        self.counts.update(self._source.counts)
        too_short = 0
        for text, place in documents:
            tokens = [self._encoder.end_of_text, *self._encoder.encode(text)][: self._encoder.context]
            size = self._options.prompt_tokens or len(tokens) // 2
            rest = tokens[size : size + self._options.max_tokens] if size else []
            if not rest:
                too_short += 1
                self.counts["documents_too_short"] = too_short
                continue
            gold = self._encoder.decode(rest)
            measure = functools.partial(self._measure, rest)
            yield Example(place, place, gold, [Request(tokens[:size], [])], 0, measure)

    def _measure(self, rest: list[int], outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
        tokens = outputs[0].tokens[: len(rest)]
        is_equal = [token == wanted for token, wanted in zip(tokens, rest, strict=False)]
        prefix = sum(itertools.takewhile(bool, is_equal))
        return self._encoder.decode(tokens), {
            "common_prefix": prefix,
            "token_accuracy": sum(is_equal) / len(rest),
            "recited": prefix == len(rest),
        }
