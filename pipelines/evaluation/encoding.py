"""What a model is asked: texts as its tokens, a beginning and what is scored after it, cut to the context."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.errors import InputError
from pipelines.model.io.model_folder import TrainedModel
from pipelines.model.training.data import token_bytes
from pipelines.tokenizers.formats import load_tokenizer


class Request(NamedTuple):
    """A text, with at least one token, and the continuations that are scored after it."""

    prefix: Sequence[int]
    continuations: Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What is known of a model without its weights; all of it but the tokenizer is in `results.json`."""

    path: str
    fingerprint: str
    parameters: int
    step: int | None
    context: int
    vocab_size: int
    end_of_text: int
    training: str = ""

    @classmethod
    def of(cls, trained: TrainedModel) -> ModelFacts:
        """Return the facts of a model."""
        size = trained.model.architecture
        # A checkpoint gets its held-out loss later, and is the finished model's if it is the last one.
        weights = dataclasses.replace(trained, config=vars(size), step=None, figures={})
        facts = trained.path, weights.fingerprint(), trained.parameters, trained.step
        return cls(*facts, size.context, size.vocab_size, trained.end_of_text, hash_config(trained.config))


def hash_config(config: Mapping[str, Any]) -> str:
    """Return a hash of a model's config.json, which all checkpoints of a training have in common."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


class Encoder:
    """Encodes texts for a model: its tokenizer, context and the token that begins a text."""

    def __init__(self, tokenizer_json: bytes, facts: ModelFacts) -> None:
        self.tokenizer_json = tokenizer_json
        self.facts = facts
        self._tokenizer = load_tokenizer(tokenizer_json, facts.path)
        self._byte_lengths = token_bytes(tokenizer_json, facts.vocab_size)
        for id, token in self._tokenizer.get_added_tokens_decoder().items():
            if self._byte_lengths is not None:  # a text may have the name of a special token
                self._byte_lengths[id] = len(token.content.encode())
        self.context = facts.context
        self.end_of_text = facts.end_of_text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def byte_lengths(self, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the number of bytes of tokens; raise InputError if the tokenizer does not encode bytes."""
        if self._byte_lengths is None:
            raise InputError(f"{self.facts.path}: the tokenizer is not byte-level, so tokens have no place in a text")
        lengths: npt.NDArray[np.int64] = self._byte_lengths[list(tokens)]
        return lengths

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def scored(self, beginning: str, ending: str) -> Request:
        """Return the request for the probability of an ending after a beginning.

        Both are encoded together, as in a text, and divided at the end of the beginning; a token that spans it is
        scored. White space at the end of the beginning counts as part of the ending, since GPT-2's tokens begin with
        it. An empty beginning is the start of a document.
        """
        stripped = beginning.rstrip()
        start, whole = self.encode(stripped), self.encode(beginning + ending)
        if not stripped:
            start, whole = [self.end_of_text], [self.end_of_text, *whole]
        shared = next((at for at, pair in enumerate(zip(start, whole, strict=False)) if pair[0] != pair[1]), len(start))
        if not 0 < shared < len(whole):  # the first token reaches into the ending, or there is no ending
            shared, whole = 1, [self.end_of_text, *whole]
        return Request(whole[:shared], [whole[shared:]])

    def tokens_of(self, words: Collection[str]) -> tuple[int, ...]:
        """Return the tokens that are one of these words, in any case and with or without a space before it."""
        size = self._tokenizer.get_vocab_size()
        return tuple(token for token in range(size) if self.decode([token]).strip().lower() in words)

    def prompt(self, text: str) -> Request:
        """Return the request to continue a text."""
        return Request(self.encode(text.rstrip()) or [self.end_of_text], [])

    def shortened(self, text: str, hint: str, new_tokens: int, place: str) -> Request:
        """Return the request to continue a text whose end is cut before a hint, so that both fit into the context."""
        kept = self.encode(hint.rstrip())
        room = self.context - new_tokens - len(kept)
        if room < 1:
            raise self._no_room(place)
        return Request([*self.encode(text)[:room], *kept], [])

    def fit(self, requests: Sequence[Request], new_tokens: int, place: str) -> tuple[list[Request], int]:
        """Cut the beginnings from the left, all by as many tokens, so that they fit into the context.

        `new_tokens` are to be added to them. Return also how many tokens were cut. Raises InputError if what is scored
        or added does not fit.
        """
        lengths = [len(prefix) + max((len(one) - 1 for one in scored), default=0) for prefix, scored in requests]
        cut = max(0, max(lengths) + new_tokens - self.context)
        if cut >= min(len(request.prefix) for request in requests):
            raise self._no_room(place)
        return [Request(request.prefix[cut:], request.continuations) for request in requests], cut

    def _no_room(self, place: str) -> InputError:
        return InputError(
            f"{place}: what is scored or written does not fit into the model's context of {self.context}; leave the "
            "example out, or lower max_tokens"
        )
