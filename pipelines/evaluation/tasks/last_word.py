"""The last word of a passage (LAMBADA). Paper, section 3.3."""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Iterator, Mapping, Sequence

from pipelines.engine.config import option
from pipelines.errors import InputError
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.records import read_records
from pipelines.evaluation.task import Example, ExampleTask, Generation, Metric, Output, Request, total

# Of a word that the model writes.
_WORD_TOKENS = 6
_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})


@dataclasses.dataclass(frozen=True)
class LastWordOptions:
    """What of a passage is predicted, and how it is written."""

    target: str = option("word", "What is predicted: the last word, or its last token.", choices=("word", "token"))
    text_field: str = option("text", "Field of records that has the passage.")
    straight_quotes: bool = option(False, "Write straight quotes for curly ones and for `` and ''.")
    newline_first: bool = option(False, "Begin the passage with a line end.")
    stop_words: tuple[str, ...] = option(
        (), "Words that the model may not write; if there are any, it writes a word, and the first one is compared."
    )


class LastWordTask(ExampleTask):
    """Perplexity and accuracy of the last word, which is right if all its tokens are the most likely ones."""

    metrics: tuple[Metric, ...] = (
        Metric("perplexity", "perplexity", "nll", "words", "word"),
        Metric("accuracy", "share", "accuracy"),
    )

    def __init__(self, options: LastWordOptions, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        super().__init__(limit)
        self._options = options
        self._files = files
        self._encoder = encoder
        if options.target == "token":
            self.metrics = (self.metrics[0]._replace(unit="token"), *self.metrics[1:])
        if options.stop_words:
            self.metrics = self.metrics[1:]
            self.generation = Generation(_WORD_TOKENS, (" ", "\n"), banned=encoder.tokens_of(set(options.stop_words)))

    def examples(self) -> Iterator[Example]:
        """See `ExampleTask`."""
        for record in read_records(self._files):
            passage = str(record.value(self._options.text_field)).strip()
            if self._options.straight_quotes:
                passage = passage.translate(_QUOTES).replace("``", '"').replace("''", '"')
            # The last word follows the last space, also if a line end is before it: that belongs to the word before.
            before, space, word = passage.rpartition(" ")
            if not before:
                raise InputError(f"{record.place}: has one word only ({word!r}), with nothing before it")
            beginning = "\n" * self._options.newline_first + before
            if self._options.stop_words:
                [request], cut = self._encoder.fit([self._encoder.prompt(beginning)], _WORD_TOKENS, record.place)
                measure = functools.partial(self._measure_word, word)
                yield Example(record.place, record.place, word, [request], cut, measure)
                continue
            [request], cut = self._encoder.fit([self._encoder.scored(beginning, space + word)], 0, record.place)
            counts = {"words_of_several_tokens": len(request.continuations[0]) > 1}
            if self._options.target == "token":
                whole = [*request.prefix, *request.continuations[0]]
                request = Request(whole[:-1], [whole[-1:]])
            yield Example(record.place, record.place, word, [request], cut, _measure, counts)

    def _measure_word(self, word: str, outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
        written = self._encoder.decode(outputs[0].tokens).split()[:1]
        return "".join(written), {"accuracy": [_letters(text) for text in written] == [_letters(word)]}


def _letters(word: str) -> str:
    return word.lower().strip(string.punctuation) or word


def _measure(outputs: Sequence[Output]) -> tuple[str, Mapping[str, float | bool]]:
    [output] = outputs
    return "", {"nll": -total(output), "words": 1, "accuracy": all(output.greedy[0])}
