"""Language modelling: the probability of texts per original word, byte or character, and of last words.

Paper, sections 3.1 (language modelling), 3.3 (LAMBADA) and figure 4.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.detokenizers import DETOKENIZERS
from pipelines.evaluation.metrics import Metric
from pipelines.evaluation.records import FILE, Document, DocumentOptions, Documents, is_text, read_lines, read_records
from pipelines.evaluation.task import Example, Fitted, Generation, Measured, Output, Request, Row, Task, prompt_hash

_ARTICLE = re.compile(r" = [^=].*[^=] = $", re.MULTILINE)
# Characters per example of a file's tail: it may be one long line, and one example has no standard error.
_PIECE = 4096
# Maximum tokens of a word that the model writes.
_WORD_TOKENS = 6
_STRAIGHT_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})


@dataclasses.dataclass(frozen=True)
class PerplexityOptions(DocumentOptions):
    """The unit, what a document is, and which tokens the model sees at once."""

    unit: str = option(
        "word",
        "Unit of the perplexity: words of the file (with line ends, or as lm-evaluation-harness counts them: the parts "
        "between white space, with empty ones), bytes or characters of its text.",
        choices=("word", "word+line", "word-lm-eval", "byte", "character"),
    )
    document: str = option(
        "record",
        "What the model sees as one document: the file, an article that begins with a heading = Title =, a line, or a "
        "record.",
        choices=("file", "article", "line", "record"),
    )
    detokenizer: str = option("none", "Rules that undo the tokenization of the file.", choices=tuple(DETOKENIZERS))
    window: int = option(0, "Tokens that the model sees at once; 0: the size of its context.", minimum=0)
    stride: int = option(0, "Tokens scored per window; 0: the window's size.", minimum=0)
    last_window: str = option(
        "full", "Whether the last window is filled up with earlier tokens.", choices=("full", "rest")
    )
    score_end: bool = option(False, "Also score <|endoftext|> after each document.")
    tail_bytes: int = option(0, "Bytes at the end of the file that are read; 0: all.", minimum=0)


class _Line(NamedTuple):
    """A line of a document, with its end, as the model sees it and as it is in the file."""

    text: str
    original: str
    units: int
    place: str
    is_example: bool


class Perplexity(Task[PerplexityOptions]):
    """Perplexity of texts; an example is a line that is not blank, a record, or a piece of a file's tail."""

    def _prepare(self) -> None:
        options = self.options
        self._samples = Documents(options, self.files)
        self._window = options.window or self.encoder.context
        self._stride = options.stride or self._window
        if not self._stride <= self._window <= self.encoder.context:
            raise UsageError(
                f"a window of {self._window:,} tokens and a stride of {self._stride:,} do not fit into the model's "
                f"context of {self.encoder.context:,}"
            )
        in_bits = options.unit in ("byte", "character")
        # Words and de-tokenizers need whole lines.
        self._piece_size = _PIECE if options.tail_bytes and in_bits and options.detokenizer == "none" else 0
        unit = options.unit.partition("-")[0].replace("+line", " or line end")
        kind, name = ("bits", f"bits_per_{unit}") if in_bits else ("perplexity", "perplexity")
        self.metrics = (
            *(() if options.part == FILE else (Metric("loss", "nats", "nats", "tokens", "token"),)),
            Metric(name, kind, "nats", "units", unit),
            Metric("token_perplexity", "perplexity", "nats", "tokens", "token"),
            *(() if options.unit == "byte" else (Metric("bits_per_byte", "bits", "nats", "bytes", "byte"),)),
        )

    def requests(self) -> Iterator[Request]:
        """See `Task`."""
        for lines in self._documents():
            yield from self._encode(lines)[0]

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """See `Task`; the loss of blank lines is added to the line before them."""
        number = 0
        for index, lines in enumerate(self._documents()):
            requests, line_of = self._encode(lines)
            log_probs = np.concatenate([next(outputs).log_probs[0] for _ in requests] or [[]])
            # A line that is not an example counts as part of the one before it, or of the first.
            owner = np.maximum(np.cumsum([line.is_example for line in lines]) - 1, 0)
            examples = [line for line in lines if line.is_example] or lines[:1]
            units, sizes = zip(*((line.units, len(line.original.encode())) for line in lines), strict=True)
            token_owner = owner[line_of]
            terms = (token_owner, -log_probs), (owner, units), (token_owner, None), (owner, sizes)
            sums = np.array([np.bincount(where, values, len(examples)) for where, values in terms])
            prompt = prompt_hash(requests)
            first_tokens = np.searchsorted(token_owner, range(len(examples))).tolist()
            for line, first, values in zip(examples, first_tokens, sums.T.tolist(), strict=True):
                # The windows of a document are computed separately, so their dependence is small.
                cluster = str(index) if self.options.document == "article" else f"{index}:{first // self._window}"
                metrics = dict(zip(("nats", "units", "tokens", "bytes"), values, strict=True))
                scored = int(metrics["tokens"])
                yield Row(number, line.place, cluster, prompt, "", "", [], scored, 0, metrics)
                number += 1

    def _encode(self, lines: Sequence[_Line]) -> tuple[list[Request], npt.NDArray[np.intp]]:
        """Return the windows of a document, and the number of the line in which each of its tokens begins."""
        tokens = self.encoder.encode("".join(line.text for line in lines))
        sizes = np.cumsum([len(line.text.encode()) for line in lines])
        lengths = self.encoder.byte_lengths(tokens)
        starts = np.cumsum(lengths) - lengths
        if self.options.score_end:
            tokens, starts = [*tokens, self.encoder.end_of_text], np.append(starts, sizes[-1] - 1)
        line_of = np.minimum(np.searchsorted(sizes, starts, side="right"), len(lines) - 1)
        text = np.array([self.encoder.end_of_text, *tokens], np.int32)
        # Windows overlap where the stride is small: slices of a buffer are not copies.
        return list(self._windows(text.data)), line_of

    def _windows(self, text: Sequence[int]) -> Iterator[Request]:
        """Yield the requests that score all tokens of a text except the first."""
        start, end = 1, min(len(text), self._window + 1)
        while start < len(text):
            last = end - 1 if self.options.last_window == "full" else start - 1 + self._stride
            yield Request(text[max(0, last - self._window) : start], [text[start:end]])
            start, end = end, min(len(text), end + self._stride)

    def _documents(self) -> Iterator[list[_Line]]:
        """Yield the lines of each document; raise InputError if there are documents, but no units."""
        self.counts.clear()
        units = []
        for lines in self._read():
            if self.options.unit == "word-lm-eval":
                # An empty string before and after the words of a document counts, too.
                edges = lines[0].original[:1].isspace() + lines[-1].original[-1:].isspace()
                lines[0] = lines[0]._replace(units=lines[0].units + edges)
            units.append(sum(line.units for line in lines))
            yield lines
        if units and not any(units):
            raise InputError(f"{self.files[0]}: has no words, so there is no perplexity per word")
        self.counts.update(self._samples.counts)

    def _read(self) -> Iterator[list[_Line]]:
        if self.options.part != FILE:
            for document in itertools.islice(self._samples, self.limit):
                yield self._lines(document, True)
            return
        kind = self.options.document
        for path in self.files:
            is_record = not is_text(path)
            lines: list[_Line] = []
            for text in itertools.islice(self._texts(path), self.limit):
                is_title = _ARTICLE.match(text.text) is not None
                if lines and {"line": True, "record": is_record, "article": is_title, "file": False}[kind]:
                    yield lines
                    lines = []
                lines += self._lines(text, is_record)
            if lines:
                yield lines

    def _texts(self, path: str) -> Iterator[Document]:
        """Yield the lines of a text with their ends, or the texts of records, with an end if they count as lines."""
        if is_text(path):
            name, size = storage.basename(path), self._piece_size
            for number, line in read_lines(path, self.options.tail_bytes):
                for start in range(0, len(line), size or len(line)):
                    column = f":{start + 1}" if size else ""
                    yield Document(line[start : start + (size or len(line))], f"{name}:{number}{column}")
            return
        if self.options.tail_bytes:
            raise InputError(f"{path}: has records, so tail_bytes has no meaning; name a text file, or set it to 0")
        for record in read_records([path]):
            text = record.text_of(self.options.text_field)
            is_line = self.options.document != "record" and not text.endswith("\n")
            yield Document(text + "\n" * is_line, record.place)

    def _lines(self, document: Document, is_record: bool) -> list[_Line]:
        """Return the lines of a text; the first one is the example."""
        options = self.options
        lines: list[_Line] = []
        is_example = is_record or bool(document.text.strip())
        for original in document.text.splitlines(True) or [""]:
            content = original.rstrip("\r\n")
            line = DETOKENIZERS[options.detokenizer].detokenize(content)
            for rule in line.left_out:
                self.counts[f"lines_without_rule:{rule}"] += 1
            self.counts["lines_with_fallback"] += bool(line.left_out)
            self.counts["bits_of_fallbacks"] += line.bits
            # If <|endoftext|> is scored after every line, it stands for the line's end.
            is_ended = options.document == "line" and options.score_end
            text = line.text + ("" if is_ended else original[len(content) :])
            lines.append(_Line(text, original, self._units(original), document.place, is_example and not lines))
        return lines

    def _units(self, text: str) -> int:
        """Count the units of a text of the file."""
        unit = self.options.unit
        if unit in ("byte", "character"):
            return len(text.encode() if unit == "byte" else text)
        return len(text.split()) + (text.count("\n") if unit == "word+line" else 0)


@dataclasses.dataclass(frozen=True)
class LastWordOptions:
    """What is predicted of a passage, and how the passage is written."""

    target: str = option("word", "What is predicted: the last word, or its last token.", choices=("word", "token"))
    text_field: str = option("text", "Field of records that has the passage.")
    straight_quotes: bool = option(False, "Write straight quotes for curly ones and for `` and ''.")
    newline_first: bool = option(False, "Begin the passage with a line end.")
    stop_words: tuple[str, ...] = option(
        (), "Words that the model may not write; if there are any, it writes a word, and the first one is compared."
    )


class LastWordTask(Task[LastWordOptions]):
    """Perplexity and accuracy of the last word, which is right if all its tokens are the most likely ones."""

    metrics: tuple[Metric, ...] = (
        Metric("perplexity", "perplexity", "nll", "words", "word"),
        Metric("accuracy", "share", "accuracy"),
    )

    def _prepare(self) -> None:
        options = self.options
        if options.target == "token":
            self.metrics = (self.metrics[0]._replace(unit="token"), *self.metrics[1:])
        if options.stop_words:
            self.metrics = self.metrics[1:]
            banned = self.encoder.tokens_of(set(options.stop_words))
            self.generation = Generation(_WORD_TOKENS, (" ", "\n"), banned=banned)

    def examples(self) -> Iterator[Example]:
        """See `Task`."""
        for record in read_records(self.files):
            passage = str(record.value(self.options.text_field)).strip()
            if self.options.straight_quotes:
                passage = passage.translate(_STRAIGHT_QUOTES).replace("``", '"').replace("''", '"')
            # The last word follows the last space, also if a line end is before it: that belongs to the word before.
            before, space, word = passage.rpartition(" ")
            if not before:
                raise InputError(f"{record.place}: has one word only ({word!r}), with nothing before it")
            beginning = "\n" * self.options.newline_first + before
            if self.options.stop_words:
                prompt = Fitted([self.encoder.prompt(beginning)])
                fitted = self.encoder.fit([prompt], record.place, _WORD_TOKENS)
                yield Example(record.place, record.place, word, fitted, functools.partial(self._measure_word, word))
                continue
            fitted = self.encoder.fit([Fitted([self.encoder.scored(beginning, space + word)])], record.place)
            [request] = fitted.requests
            counts = {"words_of_several_tokens": len(request.continuations[0]) > 1}
            if self.options.target == "token":
                whole = [*request.prefix, *request.continuations[0]]
                request = Request(whole[:-1], [whole[-1:]])
            yield Example(record.place, record.place, word, Fitted([request], fitted.cut, counts), _measure)

    def _measure_word(self, word: str, outputs: Sequence[Output]) -> Measured:
        written = self.encoder.decode(outputs[0].tokens).split()[:1]
        return Measured("".join(written), {"accuracy": [_letters(text) for text in written] == [_letters(word)]})


def _letters(word: str) -> str:
    return word.lower().strip(string.punctuation) or word


def _measure(outputs: Sequence[Output]) -> Measured:
    [output] = outputs
    return Measured("", {"nll": -output.total(), "words": 1, "accuracy": all(output.greedy[0])})
