"""Encodes the words of a corpus and a sample of its documents with a tokenizer, and counts their tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.bpe.token_statistics import token_frequencies
from pipelines.errors import InputError
from pipelines.tokenizers.encoding import Encoder, quickest_encoder

NO_GROUP = "(none)"
# Pieces of the split that are words in the everyday sense.
_ALPHABETIC = r"^ ?\pL+$"

Integers = npt.NDArray[np.int64]


class Words:
    """Distinct words from a batch with `word`, `count` (in the training text) and `held_out` (in the other text)."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.text = batch.column("word").cast(pa.string())
        self.lengths = _lengths(self.text)
        self.counts = _integers(batch.column("count"))
        self.held_out = _integers(batch.column("held_out"))
        self.is_alphabetic = pc.match_substring_regex(self.text, _ALPHABETIC).to_numpy(zero_copy_only=False)


class CorpusTotals:
    """The number of words and bytes of a corpus; `held_out_bytes` are those of the text not trained on."""

    def __init__(self) -> None:
        self.bytes = self.words = self.distinct_words = self.held_out_bytes = 0

    def add(self, words: Words) -> None:
        """Add distinct words."""
        self.bytes += int((words.lengths * words.counts).sum())
        self.held_out_bytes += int((words.lengths * words.held_out).sum())
        self.words += int(words.counts.sum())
        self.distinct_words += int(np.count_nonzero(words.counts))


class WordTally:
    """The tokens of the words of a corpus, with a tokenizer of `size` ids: `frequencies` by id, and by kind of word."""

    def __init__(self, encoder: Encoder, size: int, *, threads: bool) -> None:
        self._encoder = encoder
        self._threads = threads
        self.frequencies = np.zeros(size, np.int64)
        self.held_out_frequencies = np.zeros(size, np.int64)
        self.alphabetic_words = self.alphabetic_tokens = self.continued_words = 0

    def add(self, words: Words) -> None:
        """Add distinct words."""
        ids, starts = self._encoder.encode(words.text, threads=self._threads)
        size = len(self.frequencies)
        self.frequencies += token_frequencies(ids, starts, words.counts, size)
        if words.held_out.any():
            self.held_out_frequencies += token_frequencies(ids, starts, words.held_out, size)
        tokens, counts = np.diff(starts)[words.is_alphabetic], words.counts[words.is_alphabetic]
        self.alphabetic_words += int(counts.sum())
        self.alphabetic_tokens += int((tokens * counts).sum())
        self.continued_words += int(counts[tokens > 1].sum())


def tally_words(batches: Iterable[pa.RecordBatch], *tallies: WordTally | CorpusTotals) -> None:
    """Add batches of words to tallies."""
    for batch in batches:
        if batch.num_rows:
            words = Words(batch)
            for tally in tallies:
                tally.add(words)


class Sample:
    """Documents from a table with `group`, `text` and `held_out`; `group` numbers the names in `groups`."""

    def __init__(self, table: pa.Table) -> None:
        encoded = pc.fill_null(table.column("group").cast(pa.string()), NO_GROUP).combine_chunks().dictionary_encode()
        self.texts = [chunk for chunk in table.column("text").cast(pa.string()).chunks if len(chunk)]
        self.groups: list[str] = encoded.dictionary.to_pylist()
        self.group = _integers(encoded.indices)
        self.bytes = np.concatenate([np.empty(0, np.int64), *map(_lengths, self.texts)])
        self.held_out = table.column("held_out").to_numpy().astype(bool)


class SampleTally(NamedTuple):
    """The number of tokens of each document of a sample, and the frequency of each id in the held-out documents."""

    tokens: Integers
    held_out_frequencies: Integers


def tally_sample(encoder: Encoder, sample: Sample, size: int, *, threads: bool) -> SampleTally:
    """Encode a sample with a tokenizer of `size` ids."""
    tokens, frequencies = [np.empty(0, np.int64)], np.zeros(size, np.int64)
    first = 0
    for texts in sample.texts:
        ids, starts = encoder.encode(texts, threads=threads)
        held_out = sample.held_out[first : first + len(texts)].astype(np.int64)
        tokens.append(np.diff(starts))
        frequencies += token_frequencies(ids, starts, held_out, size)
        first += len(texts)
    return SampleTally(np.concatenate(tokens), frequencies)


@dataclasses.dataclass(frozen=True)
class Description:
    """The number of ids of a tokenizer, the lengths of its entries in bytes, and how it splits text.

    `lengths` excludes added tokens. If `splits_as_gpt2`, each word of GPT-2's split is encoded alone as in its text.
    """

    size: int
    lengths: Integers
    splits_as_gpt2: bool


def describe(tokenizer_json: bytes, source: str) -> Description:
    """Return the description of a `tokenizer.json`; raise InputError, naming `source`, if it has no vocabulary."""
    settings = json.loads(tokenizer_json)
    vocabulary = settings["model"].get("vocab")
    if not isinstance(vocabulary, dict) or not vocabulary:
        kind = settings["model"].get("type")
        raise InputError(f"{source}: its model ({kind}) has no vocabulary that assigns an id to each entry")
    added = {token["content"]: token["id"] for token in settings.get("added_tokens") or ()}
    # Each character of an entry stands for a byte.
    lengths = [len(token) for token in vocabulary if token not in added]
    split = settings.get("pre_tokenizer") or {}
    is_byte_level = not settings.get("normalizer") and split.get("type") == "ByteLevel"
    return Description(
        max([*vocabulary.values(), *added.values()]) + 1,
        np.array(lengths, np.int64),
        bool(is_byte_level and split.get("use_regex", True) and not split.get("add_prefix_space", True)),
    )


class Reference(NamedTuple):
    """A tokenizer to compare with: its name and `tokenizer.json`."""

    name: str
    tokenizer_json: bytes


def require_comparable(reference: Reference) -> None:
    """Raise InputError if a tokenizer cannot be loaded, or does not describe its ids."""
    describe(reference.tokenizer_json, reference.name)
    quickest_encoder(reference.tokenizer_json, reference.name)


def _lengths(text: pa.StringArray) -> Integers:
    return _integers(pc.binary_length(text))


def _integers(column: pa.Array) -> Integers:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)
