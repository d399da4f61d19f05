"""Language modelling: the probability of a text per original word, byte or character. Paper, section 3.1, figure 4."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.engine.config import option
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.detokenizers import DETOKENIZERS
from pipelines.evaluation.documents import FILE, Document, DocumentOptions, Documents, record_text
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.records import is_text, read_lines, read_records
from pipelines.evaluation.task import Generation, Metric, Output, Request, Row, prompt_hash

_ARTICLE = re.compile(r" = [^=].*[^=] = $", re.MULTILINE)
# Characters of an example of a file's tail, which may be one long line: without several there is no standard error.
_PIECE = 4096


@dataclasses.dataclass(frozen=True)
class PerplexityOptions(DocumentOptions):
    """What is counted, what a document is, and what of it the model sees."""

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
    window: int = option(0, "Tokens that the model sees at once; 0: its context.", minimum=0)
    stride: int = option(0, "Tokens that are scored per window; 0: as many as the window has.", minimum=0)
    last_window: str = option(
        "full", "Whether the last window is filled up with earlier tokens.", choices=("full", "rest")
    )
    score_end: bool = option(False, "Also score <|endoftext|> after each document.")
    tail_bytes: int = option(0, "Only the last so many bytes of a longer file; 0: all of it.", minimum=0)


class _Line(NamedTuple):
    """A line of a document as the model sees it, with its end, and how many units and bytes it has in the file."""

    text: str
    units: int
    size: int
    place: str
    is_example: bool
    edges: tuple[bool, bool]  # whether its first and last characters in the file are white space


class _Encoded(NamedTuple):
    """The line of a document in which each of its tokens begins, and its windows."""

    line_of: npt.NDArray[np.intp]
    requests: list[Request]


class Perplexity:
    """The perplexity of texts; an example is a line of a file that is not blank, a record, or a piece of a tail."""

    generation: Generation | None = None
    embeds: bool = False

    def __init__(self, options: PerplexityOptions, files: Sequence[str], encoder: Encoder, limit: int | None) -> None:
        self._options = options
        self._files = files
        self._source = Documents(options, files)
        self._encoder = encoder
        self._limit = limit
        self._window = options.window or encoder.context
        self._stride = options.stride or self._window
        if not self._stride <= self._window <= encoder.context:
            raise UsageError(
                f"a window of {self._window:,} tokens and a stride of {self._stride:,} do not fit into the model's "
                f"context of {encoder.context:,}"
            )
        self.counts: defaultdict[str, float] = defaultdict(float)
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
        """See `Task.requests`."""
        units: list[int] = []
        for lines in self._documents(defaultdict(float)):
            units.append(sum(line.units for line in lines))
            yield from self._encode(lines).requests
        if units and not any(units):
            raise InputError(f"{self._files[0]}: has no words, so there is no perplexity per word")

    def rows(self, outputs: Iterator[Output]) -> Iterator[Row]:
        """See `Task.rows`: what blank lines cost is added to the line before them."""
        number = 0
        for index, lines in enumerate(self._documents(self.counts)):
            encoded = self._encode(lines)
            log_probs = np.concatenate([next(outputs).log_probs[0] for _ in encoded.requests] or [[]])
            # A line that is no example counts as part of the one before it, or of the first.
            owner = np.maximum(np.cumsum([line.is_example for line in lines]) - 1, 0)
            examples = [line for line in lines if line.is_example] or lines[:1]
            sums = np.zeros((4, len(examples)))
            np.add.at(sums[0], owner[encoded.line_of], -log_probs)
            np.add.at(sums[1], owner, [line.units for line in lines])
            np.add.at(sums[2], owner[encoded.line_of], 1)
            np.add.at(sums[3], owner, [line.size for line in lines])
            first = np.searchsorted(owner[encoded.line_of], range(len(examples)))
            prompt = prompt_hash(encoded.requests)
            for place, (line, position) in enumerate(zip(examples, first.tolist(), strict=True)):
                nats, units, tokens, size = map(float, sums[:, place])
                # Windows of one document are computed apart; neighbouring ones still depend on each other a little.
                cluster = f"{index}:{position // self._window}" if self._options.document != "article" else str(index)
                metrics = {"nats": nats, "units": units, "tokens": tokens, "bytes": size}
                yield Row(number, line.place, cluster, prompt, "", "", [], int(tokens), 0, metrics)
                number += 1

    def _encode(self, lines: Sequence[_Line]) -> _Encoded:
        tokens = self._encoder.encode("".join(line.text for line in lines))
        sizes = np.cumsum([len(line.text.encode()) for line in lines])
        lengths = self._encoder.byte_lengths(tokens)
        starts = np.cumsum(lengths) - lengths
        if self._options.score_end:
            tokens, starts = [*tokens, self._encoder.end_of_text], np.append(starts, sizes[-1] - 1)
        line_of = np.minimum(np.searchsorted(sizes, starts, side="right"), len(lines) - 1)
        text = np.array([self._encoder.end_of_text, *tokens], np.int32)
        # Windows overlap where the stride is small: slices of a buffer are not copies.
        return _Encoded(line_of, list(self._windows(text.data)))

    def _windows(self, text: Sequence[int]) -> Iterator[Request]:
        """Yield the requests that score all tokens of a text but the first."""
        start, end = 1, min(len(text), self._window + 1)
        while start < len(text):
            seen = (
                end - 1 - self._window
                if self._options.last_window == "full"
                else start - 1 + self._stride - self._window
            )
            yield Request(text[max(0, seen) : start], [text[start:end]])
            start, end = end, min(len(text), end + self._stride)

    def _documents(self, counts: defaultdict[str, float]) -> Iterator[list[_Line]]:
        for lines in self._read(counts):
            if self._options.unit == "word-lm-eval":
                # An empty string before and after the words of a document counts, too.
                lines[0] = lines[0]._replace(units=lines[0].units + lines[0].edges[0] + lines[-1].edges[1])
            yield lines

    def _read(self, counts: defaultdict[str, float]) -> Iterator[list[_Line]]:
        if self._options.part != FILE:
            for document in itertools.islice(self._source, self._limit):
                yield self._lines(document, True, counts)
            counts.update(self._source.counts)
            return
        kind = self._options.document
        for path in self._files:
            is_record = not is_text(path)
            lines: list[_Line] = []
            for text in itertools.islice(self._texts(path), self._limit):
                is_title = _ARTICLE.match(text.text) is not None
                if lines and {"line": True, "record": is_record, "article": is_title, "file": False}[kind]:
                    yield lines
                    lines = []
                lines += self._lines(text, is_record, counts)
            if lines:
                yield lines

    def _texts(self, path: str) -> Iterator[Document]:
        """Yield the lines of a text with their ends, or the texts of records, which have one if they are lines."""
        if is_text(path):
            name, size = storage.basename(path), self._piece_size
            for number, line in read_lines(path, self._options.tail_bytes):
                for start in range(0, len(line), size or len(line)):
                    column = f":{start + 1}" if size else ""
                    yield Document(line[start : start + (size or len(line))], f"{name}:{number}{column}")
            return
        if self._options.tail_bytes:
            raise InputError(f"{path}: has records, of which there is no tail; name a text file, or set tail_bytes = 0")
        for record in read_records([path]):
            text = record_text(record, self._options.text_field)
            is_line = self._options.document != "record" and not text.endswith("\n")
            yield Document(text + "\n" * is_line, record.place)

    def _lines(self, text: Document, is_record: bool, counts: defaultdict[str, float]) -> list[_Line]:
        """Return the lines of a text, of which the first one stands for all of a record."""
        first, *others = text.text.splitlines(True) or [""]
        return [
            self._line(first, text.place, is_record or bool(text.text.strip()), counts),
            *(self._line(line, text.place, False, counts) for line in others),
        ]

    def _line(self, text: str, place: str, is_example: bool, counts: defaultdict[str, float]) -> _Line:
        content = text.rstrip("\r\n")
        line = DETOKENIZERS[self._options.detokenizer].detokenize(content)
        for rule in line.left_out:
            counts[f"lines_without_rule:{rule}"] += 1
        counts["lines_with_fallback"] += bool(line.left_out)
        counts["bits_of_fallbacks"] += line.bits
        # If <|endoftext|> is scored after every line, it stands for the line's end.
        is_ended = self._options.document == "line" and self._options.score_end
        shown = line.text + ("" if is_ended else text[len(content) :])
        edges = text[:1].isspace(), text[-1:].isspace()
        return _Line(shown, self._units(text), len(text.encode()), place, is_example, edges)

    def _units(self, text: str) -> int:
        """Count the units of a text of the file."""
        unit = self._options.unit
        if unit in ("byte", "character"):
            return len(text.encode() if unit == "byte" else text)
        return len(text.split()) + (text.count("\n") if unit == "word+line" else 0)
