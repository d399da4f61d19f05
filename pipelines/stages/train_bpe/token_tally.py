"""Encodes the words of a corpus and a sample of its documents, and adds up what their tokens are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.bpe.token_statistics import token_frequencies
from pipelines.core.errors import InputError
from pipelines.tokenizers.encoding import Encoder, quickest_encoder

NO_GROUP = "(none)"
# The pieces of the split that are words in the everyday sense.
_LETTERS = r"^ ?\pL+$"

Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Words:
    """Some distinct words: their text, how often each occurs in what was trained on and in what was held out."""

    text: pa.StringArray
    starts: Integers
    counts: Integers
    held_out: Integers
    of_letters: npt.NDArray[np.bool_]


def words_of(batch: pa.RecordBatch) -> Words:
    """Return a batch with the columns `word`, `count` and `held_out` as arrays."""
    text = batch.column("word").cast(pa.string())
    return Words(
        text,
        starts_of(text),
        _integers(batch.column("count")),
        _integers(batch.column("held_out")),
        pc.match_substring_regex(text, _LETTERS).to_numpy(zero_copy_only=False),
    )


def starts_of(text: pa.StringArray) -> Integers:
    """Return where each string begins, in bytes, and last where all end."""
    return np.concatenate(([0], np.cumsum(pc.binary_length(text).to_numpy(zero_copy_only=False), dtype=np.int64)))


def _integers(column: pa.Array) -> Integers:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


class WordTally:
    """Adds up the tokens of the words of a corpus, by one tokenizer with `size` ids."""

    def __init__(self, encoder: Encoder, size: int, *, threads: bool) -> None:
        self._encoder = encoder
        self._threads = threads
        self.frequencies = np.zeros(size, np.int64)
        self.held_out_frequencies = np.zeros(size, np.int64)
        self.letter_words = self.letter_tokens = self.continued_words = 0

    def add(self, words: Words) -> None:
        """Add some words."""
        ids, starts = self._encoder.encode(words.text, threads=self._threads)
        size = len(self.frequencies)
        self.frequencies += token_frequencies(ids, starts, words.counts, size)
        if words.held_out.any():
            self.held_out_frequencies += token_frequencies(ids, starts, words.held_out, size)
        lengths, counts = np.diff(starts)[words.of_letters], words.counts[words.of_letters]
        self.letter_words += int(counts.sum())
        self.letter_tokens += int((lengths * counts).sum())
        self.continued_words += int(counts[lengths > 1].sum())


@dataclasses.dataclass(frozen=True)
class Sample:
    """The documents of a sample: group (a number of `groups`), bytes, and which are held out."""

    texts: tuple[pa.StringArray, ...]
    groups: tuple[str, ...]
    group: npt.NDArray[np.int64]
    bytes: Integers
    held_out: npt.NDArray[np.bool_]


def sample_of(table: pa.Table) -> Sample:
    """Return the documents of a table with the columns `group`, `text` and `held_out`."""
    texts = tuple(chunk for chunk in table.column("text").cast(pa.string()).chunks if len(chunk))
    named = pc.fill_null(table.column("group").cast(pa.string()), NO_GROUP).combine_chunks().dictionary_encode()
    return Sample(
        texts,
        tuple(named.dictionary.to_pylist()),
        _integers(named.indices),
        np.concatenate([np.empty(0, np.int64), *(np.diff(starts_of(text)) for text in texts)]),
        table.column("held_out").to_numpy().astype(bool),
    )


@dataclasses.dataclass(frozen=True)
class SampleTally:
    """The tokens of each document of a sample, and how often each id occurs in those that are held out."""

    tokens: Integers
    held_out_frequencies: Integers


def tally_sample(encoder: Encoder, sample: Sample, size: int, *, threads: bool) -> SampleTally:
    """Encode a sample with a tokenizer of `size` ids."""
    tokens, frequencies = [np.empty(0, np.int64)], np.zeros(size, np.int64)
    for text, held_out in _with_held_out(sample):
        ids, starts = encoder.encode(text, threads=threads)
        tokens.append(np.diff(starts))
        frequencies += token_frequencies(ids, starts, held_out.astype(np.int64), size)
    return SampleTally(np.concatenate(tokens), frequencies)


def _with_held_out(sample: Sample) -> Iterator[tuple[pa.StringArray, npt.NDArray[np.bool_]]]:
    first = 0
    for text in sample.texts:
        yield text, sample.held_out[first : first + len(text)]
        first += len(text)


class Description(NamedTuple):
    """What a `tokenizer.json` says of itself: its ids, the lengths of its entries, and how it splits text.

    `lengths` are bytes, of the entries without the added ones, where each character stands for a byte. With
    `splits_as_gpt2` the words of GPT-2's split give the same tokens alone as in their text.
    """

    size: int
    lengths: Integers
    splits_as_gpt2: bool


def describe(tokenizer_json: bytes, source: str) -> Description:
    """Return what a `tokenizer.json` says of itself; raise InputError, naming `source`, where that is not enough."""
    settings = json.loads(tokenizer_json)
    vocabulary = settings["model"].get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        kind = settings["model"].get("type")
        raise InputError(f"{source}: its model ({kind}) has no vocabulary that gives each entry an id")
    added = {each["content"]: each["id"] for each in settings.get("added_tokens") or ()}
    lengths = [len(token) for token in vocabulary if token not in added]
    split = settings.get("pre_tokenizer") or {}
    is_plain = not settings.get("normalizer") and split.get("type") == "ByteLevel"
    return Description(
        max([*vocabulary.values(), *added.values()]) + 1,
        np.array(lengths, np.int64),
        bool(is_plain and split.get("use_regex", True) and not split.get("add_prefix_space", True)),
    )


class Reference(NamedTuple):
    """A tokenizer to compare with: what to call it, and its `tokenizer.json`."""

    name: str
    tokenizer_json: bytes


def require_comparable(reference: Reference) -> None:
    """Raise InputError for a tokenizer that a card cannot show: one that cannot be loaded, or does not tell its ids."""
    describe(reference.tokenizer_json, reference.name)
    quickest_encoder(reference.tokenizer_json, reference.name)
