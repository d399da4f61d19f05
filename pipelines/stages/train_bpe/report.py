"""Computes the report of a tokenizer: what its vocabulary does to the corpus, as JSON values.

Figures without any data are null. Shares are between 0 and 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.bpe.merges import Merges
from pipelines.algorithms.bpe.suspicious_tokens import KINDS, kind_of, shown
from pipelines.errors import InputError
from pipelines.tokenizers.encoding import quickest_encoder
from pipelines.tokenizers.formats import load_tokenizer, read_tokenizer, splits_as_gpt2, vocabulary_size

_MAX_LISTED = 40
_MAX_LISTED_PER_KIND = 8
# Each distinct word is encoded once, so a larger cache gains nothing.
_MAX_CACHED_WORDS = 500_000
_BYTES = 256
# Pieces of the split that are words in the everyday sense.
_ALPHABETIC = r"^ ?\pL+$"

Integers = npt.NDArray[np.int64]


class TokenizerUse:
    """How often a tokenizer uses each of its ids in the words of a corpus and in a sample of its texts.

    If it splits text as GPT-2 does, each word is encoded alone as in its text, so that sums over words are exact.
    Otherwise only the sample is encoded. Raises InputError, naming `source`, if the tokenizer cannot be loaded.
    """

    def __init__(self, tokenizer_json: bytes, source: str, name: str, entries: int | None = None) -> None:
        self.name = name
        self.fingerprint = hashlib.sha256(tokenizer_json).hexdigest()
        self._encoder = quickest_encoder(tokenizer_json, source, max_texts=_MAX_CACHED_WORDS)
        self.entries = entries or vocabulary_size(load_tokenizer(tokenizer_json, source))
        self.splits_as_gpt2 = splits_as_gpt2(json.loads(tokenizer_json))
        self.corpus, self.held_out, self.held_out_sample = (np.zeros(self.entries, np.int64) for _ in range(3))
        self.alphabetic_words = self.alphabetic_tokens = self.sample_tokens = 0

    def add_words(self, words: pa.RecordBatch, is_alphabetic: npt.NDArray[np.bool_]) -> None:
        """Add distinct words with their `count` and `held_out`."""
        ids, starts = self._encoder.encode(words.column("word"), threads=True)
        tokens, counts = np.diff(starts), words.column("count").to_numpy()
        np.add.at(self.corpus, ids, np.repeat(counts, tokens))
        np.add.at(self.held_out, ids, np.repeat(words.column("held_out").to_numpy(), tokens))
        self.alphabetic_words += int(counts[is_alphabetic].sum())
        self.alphabetic_tokens += int((tokens * counts)[is_alphabetic].sum())

    def add_sample(self, sample: pa.RecordBatch) -> None:
        """Add sampled texts."""
        ids, starts = self._encoder.encode(sample.column("text"), threads=True)
        self.sample_tokens += len(ids)
        held_out = sample.column("held_out").to_numpy(zero_copy_only=False).astype(np.int64)
        np.add.at(self.held_out_sample, ids, np.repeat(held_out, np.diff(starts)))


def read_reference(path: str) -> TokenizerUse:
    """Load the tokenizer to compare with; raise InputError if it cannot be used."""
    try:
        return TokenizerUse(read_tokenizer(path), path, storage.basename(path.rstrip("/")))
    except InputError as error:
        raise InputError(f"--compare {path}: {error}; use another tokenizer, or omit --compare") from error


def make_report(
    *,
    tokens: Sequence[bytes],
    merges: Merges,
    words: Iterable[pa.RecordBatch],
    sample: pa.Table,
    tokenizer_json: bytes,
    held_out_was_trained_on: bool,
    reference: TokenizerUse | None = None,
    rare_below: int = 100,
) -> dict[str, Any]:
    """Return the report; the same inputs give the same report.

    `tokens` are the entries by id, without <|endoftext|>; merge i makes entry 256 + i. `words` are batches of distinct
    words with their `count` in the training text, and in the held-out documents. `sample` has `text` and `held_out`.
    With `held_out_was_trained_on`, the held-out documents are those that `tokenize` would hold out.
    """
    own = TokenizerUse(tokenizer_json, "the new tokenizer", "this tokenizer", len(tokens) + 1)
    uses = [own, *([reference] if reference else [])]
    corpus = dict.fromkeys(("bytes", "words", "distinct_words", "held_out_bytes"), 0)
    for batch in words:
        counts, held_out = (batch.column(name).to_numpy() for name in ("count", "held_out"))
        lengths = pc.binary_length(batch.column("word")).to_numpy().astype(np.int64)
        corpus["bytes"] += int(lengths @ counts)
        corpus["held_out_bytes"] += int(lengths @ held_out)
        corpus["words"] += int(counts.sum())
        corpus["distinct_words"] += int(np.count_nonzero(counts))
        is_alphabetic = pc.match_substring_regex(batch.column("word"), _ALPHABETIC).to_numpy(zero_copy_only=False)
        for use in uses:
            if use.splits_as_gpt2:
                use.add_words(batch, is_alphabetic)
    for batch in sample.to_batches():
        for use in uses:
            use.add_sample(batch)
    sizes = pc.binary_length(sample.column("text")).to_numpy()
    corpus["sample_bytes"] = int(sizes.sum())
    corpus["held_out_sample_bytes"] = int(sizes[sample.column("held_out").to_numpy()].sum())
    figures = _figures(own, corpus)
    vocabulary = _Vocabulary(tokens, merges, own)
    return {
        "corpus": corpus,
        "tokenizer": figures | {"merges": len(merges.left)},
        "reference": _figures(reference, corpus) if reference else None,
        "held_out_was_trained_on": held_out_was_trained_on and figures["held_out"]["tokens"] > 0,
        "rare": vocabulary.rare(rare_below),
        "unused": vocabulary.unused() if figures["held_out"]["tokens"] else [],
        "suspicious": vocabulary.suspicious(),
        "longest": vocabulary.listed(sorted(range(len(tokens)), key=lambda id: -len(tokens[id]))),
    }


def _figures(use: TokenizerUse, corpus: dict[str, int]) -> dict[str, Any]:
    """Return the figures of one tokenizer; those of the corpus are null if it does not split text as GPT-2 does."""
    uses_all_words = bool(use.held_out.any())
    held_out = use.held_out if uses_all_words else use.held_out_sample
    size_bytes = corpus["held_out_bytes" if uses_all_words else "held_out_sample_bytes"]
    tokens, used = int(held_out.sum()), int(np.count_nonzero(held_out))
    return {
        "name": use.name,
        "entries": use.entries,
        "bytes_per_token": _ratio(corpus["bytes"], int(use.corpus.sum())),
        "sample_bytes_per_token": _ratio(corpus["sample_bytes"], use.sample_tokens),
        "fertility": _ratio(use.alphabetic_tokens, use.alphabetic_words),
        "held_out": {
            "measured_on": "all words" if uses_all_words else "the sample",
            "bytes": size_bytes,
            "tokens": tokens,
            "bytes_per_token": _ratio(size_bytes, tokens),
            "entries_used": used if tokens else None,
            # <|endoftext|>, which no text uses, is not counted.
            "share_used": _ratio(used, use.entries - 1) if tokens else None,
        },
    }


class _Vocabulary:
    """The entries of the new tokenizer, with their frequencies in the corpus and in held-out text."""

    def __init__(self, tokens: Sequence[bytes], merges: Merges, use: TokenizerUse) -> None:
        self._tokens = tokens
        self._merges = merges
        self._frequencies = use.corpus[: len(tokens)]
        self._held_out = (use.held_out if use.held_out.any() else use.held_out_sample)[: len(tokens)]

    def listed(self, ids: Iterable[int], limit: int = _MAX_LISTED) -> list[dict[str, Any]]:
        """Return the figures of the first entries; `when_merged` is how often the pair occurred when it was merged."""
        return [
            {
                "id": id,
                "token": shown(self._tokens[id]),
                "bytes": len(self._tokens[id]),
                "count": int(self._frequencies[id]),
                "held_out": int(self._held_out[id]),
                "when_merged": int(self._merges.counts[id - _BYTES]) if id >= _BYTES else None,
            }
            for id in list(ids)[:limit]
        ]

    def rare(self, below: int) -> dict[str, Any]:
        """Return the entries that are rare in the corpus; single bytes, part of every vocabulary, come last."""
        rare = np.flatnonzero(self._frequencies < below)
        order = np.lexsort((rare, self._frequencies[rare], rare < _BYTES))
        return {
            "below": below,
            "entries": len(rare),
            "single_bytes": int(np.count_nonzero(rare < _BYTES)),
            "never": int(np.count_nonzero(self._frequencies == 0)),
            "listed": self.listed(rare[order].tolist()),
        }

    def unused(self) -> list[dict[str, Any]]:
        """Return entries that held-out text does not use, those most frequent in the corpus first.

        Such entries often come from one source.
        """
        unused = np.flatnonzero(self._held_out == 0)
        return self.listed(unused[np.argsort(-self._frequencies[unused], kind="stable")].tolist())

    def suspicious(self) -> list[dict[str, Any]]:
        """Return the suspicious entries by kind, the longest of each first."""
        ids: dict[str, list[int]] = {kind: [] for kind in KINDS}
        for id, token in enumerate(self._tokens):
            if kind := kind_of(token):
                ids[kind].append(id)
        return [
            {
                "kind": kind,
                "what": description,
                "entries": len(ids[kind]),
                "listed": self.listed(sorted(ids[kind], key=lambda id: -len(self._tokens[id])), _MAX_LISTED_PER_KIND),
            }
            for kind, (description, _) in KINDS.items()
            if ids[kind]
        ]


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
