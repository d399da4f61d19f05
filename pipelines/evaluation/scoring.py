"""Log-probabilities of continuations, and greedy or sampled continuations, for many texts at once.

Texts that begin alike share the computation of their beginning. All new tokens of a batch are computed in one row, as
the branches of a tree: a token attends to those before it in its own text. There is no padding, and ten answers to a
question of 700 tokens compute the question once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from pipelines import progress
from pipelines.evaluation.task import Output, Request
from pipelines.model.device import DeviceConfig
from pipelines.model.inference.decoding import Choose, check_finite, continue_texts
from pipelines.model.network.gpt2 import GPT2, LOGITS_AT_ONCE, Branches, KeyValueCache

Tokens = npt.NDArray[np.int64]

# With more, attention is computed between texts that do not see each other; with fewer, matrix units are used less.
_TOKENS_AT_ONCE = {"cpu": 768, "cuda": 4096}
# Texts that are continued together; their keys and values take memory, see `Scorer.memory_bytes`.
_TEXTS_AT_ONCE = {"cpu": 16, "cuda": 64}


class _Sequence(NamedTuple):
    """The tokens of a text, how many hidden states are needed at its end, and the key of its result."""

    tokens: Tokens
    needed: int
    key: Any


class Scorer:
    """A model on its device; `tokens_at_once` bounds the new tokens of a batch."""

    def __init__(self, model: GPT2, device: DeviceConfig, tokens_at_once: int = 0) -> None:
        self._model = model
        self._device = device
        self._tokens_at_once = tokens_at_once or _TOKENS_AT_ONCE.get(device.device.type, _TOKENS_AT_ONCE["cpu"])
        self._texts_at_once = _TEXTS_AT_ONCE.get(device.device.type, _TEXTS_AT_ONCE["cpu"])
        self._cache_dtype = torch.bfloat16 if device.bf16 else model.wte.weight.dtype
        self.context = model.architecture.context

    def score(self, requests: Sequence[Request]) -> list[Output]:
        """Return the log-probabilities of all continuations of each request.

        The results do not depend on the batches beyond rounding. Raises InputError if logits are not finite.
        """
        sequences = [
            _Sequence(np.concatenate([request.prefix, tokens[:-1]]).astype(np.int64), len(tokens), (number, index))
            for number, request in enumerate(requests)
            for index, tokens in enumerate(request.continuations)
            if len(tokens)
        ]
        scores = [Output([[] for _ in texts], [[] for _ in texts]) for _, texts in requests]
        tree = self._tree(0)
        with torch.no_grad(), self._device.autocast():
            for batch in _batches(sequences, self._tokens_at_once):
                rows, hidden = tree.extend(batch)
                keys = [item.key for item in batch]
                wanted = np.concatenate([requests[number].continuations[index] for number, index in keys])
                log_probs, greedy = self._score_tokens(hidden, np.concatenate(rows), wanted.astype(np.int64))
                ends = np.cumsum([item.needed for item in batch])[:-1]
                parts = zip(keys, np.split(log_probs, ends), np.split(greedy, ends), strict=True)
                for (number, index), token_log_probs, is_greedy in parts:
                    scores[number].log_probs[index] = token_log_probs.tolist()
                    scores[number].greedy[index] = is_greedy.tolist()
                progress.advance(len(wanted))
        return scores

    def continue_texts(
        self, texts: Sequence[Sequence[int]], max_tokens: int, choose: Choose, is_complete: Callable[[list[int]], bool]
    ) -> list[Output]:
        """Continue each text by at most `max_tokens` tokens, or to the end of the model's context.

        `choose` and `is_complete` as for `decoding.continue_texts`.
        """
        sequences = [_Sequence(np.array(text, np.int64), 1, number) for number, text in enumerate(texts)]
        results: dict[int, Output] = {}
        tree = self._tree(max_tokens)

        def logits_of(hidden: Tensor) -> Tensor:
            return F.linear(hidden, self._model.wte.weight).float()

        with torch.no_grad(), self._device.autocast():
            for batch in _batches(sequences, self._tokens_at_once, self._texts_at_once):
                last_rows, hidden = tree.extend(batch)
                numbers = [item.key for item in batch]

                def choose_in_batch(logits: Tensor, rows: Sequence[int], numbers: list[int] = numbers) -> list[int]:
                    return choose(logits, [numbers[row] for row in rows])

                continuations = continue_texts(
                    logits_of(hidden[np.concatenate(last_rows).tolist()]),
                    lambda tokens: logits_of(tree.append(tokens)),
                    [min(max_tokens, self.context - len(item.tokens) + 1) for item in batch],
                    choose_in_batch,
                    is_complete,
                )
                for number, (tokens, log_probs, ended) in zip(numbers, continuations, strict=True):
                    results[number] = Output([log_probs], [], tokens, ended)
        return [results[number] for number in range(len(texts))]

    def embed(self, texts: Sequence[Sequence[int]]) -> list[Output]:
        """Return the mean over the tokens of each text of the hidden states after the final norm, as `vector`.

        A text has 1 to `context` tokens. Hidden states are float32, their sums float64. Raises InputError if they are
        not finite.
        """
        sequences = [_Sequence(np.array(text, np.int64), len(text), number) for number, text in enumerate(texts)]
        results: dict[int, Output] = {}
        tree = self._tree(0)
        with torch.no_grad(), self._device.autocast():
            for batch in _batches(sequences, self._tokens_at_once):
                text_rows, hidden = tree.extend(batch)
                check_finite(hidden)
                states = hidden.float().cpu().numpy()
                for rows, item in zip(text_rows, batch, strict=True):
                    mean = states[rows].mean(axis=0, dtype=np.float64)
                    results[item.key] = Output([], [], vector=mean.astype(np.float32).tolist())
                    progress.advance(len(item.tokens))
        return [results[number] for number in range(len(texts))]

    def memory_bytes(self, max_tokens: int = 0) -> int:
        """Return the memory for keys, values and logits, in bytes; `max_tokens` as for `continue_texts`.

        The keys and values of a layer are copied for its attention, and there are three arrays of logits at a time.
        """
        size = self._model.architecture
        layer = 2 * size.width * self._capacity(max_tokens) * self._cache_dtype.itemsize
        return (size.layers + 2) * layer + 3 * 4 * max(LOGITS_AT_ONCE, self._texts_at_once * size.vocab_size)

    def _capacity(self, max_tokens: int) -> int:
        return self.context + max(self._tokens_at_once, self.context) + self._texts_at_once * max_tokens

    def _tree(self, max_tokens: int) -> _Tree:
        capacity = self._capacity(max_tokens)
        cache = KeyValueCache(self._model.architecture, 1, self._device.device, self._cache_dtype, capacity)
        return _Tree(self._model, cache)

    def _score_tokens(
        self, hidden: Tensor, rows: Tokens, targets: Tokens
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Return the log-probability of a target after the hidden state of its row, and whether it is the largest."""
        log_probs = np.empty(len(rows), np.float32)
        greedy = np.empty(len(rows), np.bool_)
        step = max(1, LOGITS_AT_ONCE // self._model.architecture.vocab_size)
        embedding = self._model.wte.weight
        # One array for all parts: page faults of a new one take as long as the exponentials.
        buffer = hidden.new_empty(min(step, len(rows)), len(embedding), dtype=torch.float32)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            states = hidden[torch.from_numpy(rows[part]).to(hidden.device)]
            if self._device.bf16:
                logits = F.linear(states, embedding).float()
            else:
                logits = torch.mm(states, embedding.t(), out=buffer[: len(states)])
            wanted = torch.from_numpy(targets[part]).to(hidden.device)
            largest = logits.amax(1)
            chosen = logits.gather(1, wanted[:, None]).squeeze(1)
            is_largest = chosen == largest
            # Of equal logits the first one counts, as in every greedy decoder.
            tied = is_largest.nonzero().squeeze(1)
            is_largest[tied] = logits[tied].argmax(1) == wanted[tied]
            greedy[part] = is_largest.cpu().numpy()
            sums = logits.sub_(largest[:, None]).exp_().sum(1)
            chosen = (chosen - largest) - sums.log()
            check_finite(chosen)
            log_probs[part] = chosen.cpu().numpy()
        return log_probs, greedy


class _Tree:
    """Texts whose keys and values are in a cache, as paths of its entries."""

    def __init__(self, model: GPT2, cache: KeyValueCache) -> None:
        self._model = model
        self._cache = cache
        self._last = np.zeros(0, np.int64)  # the tokens of the last text, and their entries
        self._path = np.zeros(0, np.int64)
        self._visible: Tensor | None = None
        self._lengths: list[int] = []
        self._paths: list[Tokens] = []

    def extend(self, batch: Sequence[_Sequence]) -> tuple[list[Tokens], Tensor]:
        """Replace the texts, keeping what the first one shares with the last of the previous ones.

        Return the hidden states of the new entries, and for each text their rows for its last `needed` tokens.
        """
        retained = _retained(self._last, batch[0])
        for part in (self._cache.keys, self._cache.values):
            part[:, :, :, :retained] = part[:, :, :, torch.from_numpy(self._path[:retained]).to(part.device)]
        self._cache.length = retained
        self._last, self._path = batch[0].tokens[:retained], np.arange(retained)
        self._paths = []
        shared_lengths: list[int] = []
        end = retained
        for text in (item.tokens for item in batch):
            shared = common_length(self._last, text)
            self._path = np.concatenate([self._path[:shared], np.arange(end, end + len(text) - shared)])
            self._last = text
            self._paths.append(self._path)
            shared_lengths.append(shared)
            end += len(text) - shared
        new = np.concatenate([item.tokens[shared:] for item, shared in zip(batch, shared_lengths, strict=True)])
        is_plain = len(batch) == 1 and not retained
        hidden = self._compute(new, None if is_plain else self._branches(shared_lengths, retained, end))
        self._visible = None
        return [path[-item.needed :] - retained for path, item in zip(self._paths, batch, strict=True)], hidden

    def append(self, tokens: Mapping[int, int]) -> Tensor:
        """Append a token to texts, by number; return the hidden states of these tokens."""
        if self._visible is None:
            self._visible = torch.zeros(len(self._paths), self._cache.keys.shape[3], dtype=torch.bool)
            for number, path in enumerate(self._paths):
                self._visible[number, torch.from_numpy(path)] = True
            self._lengths = list(map(len, self._paths))
        start, numbers = self._cache.length, list(tokens)
        self._visible[numbers, range(start, start + len(numbers))] = True
        positions = torch.tensor([self._lengths[number] for number in numbers])
        for number in numbers:
            self._lengths[number] += 1
        branches = Branches(positions, self._visible[numbers, : start + len(numbers)])
        return self._compute(np.array(list(tokens.values()), np.int64), branches)

    def _compute(self, tokens: Tokens, branches: Branches | None) -> Tensor:
        device = self._cache.keys.device
        on_device = branches and Branches(*(part.to(device) for part in branches))
        return self._model.hidden(torch.from_numpy(tokens)[None].to(device), self._cache, on_device)[0]

    def _branches(self, shared_lengths: Sequence[int], start: int, end: int) -> Branches:
        """Return positions and visibility of the entries from `start` to `end`.

        The first tokens of each text, `shared_lengths` of them, are entries of earlier texts.
        """
        positions = torch.zeros(end - start, dtype=torch.int64)
        visible = torch.zeros(end - start, end, dtype=torch.bool)
        for path, shared in zip(self._paths, shared_lengths, strict=True):
            new = len(path) - shared
            if new:
                first = int(path[shared])
                rows = slice(first - start, first - start + new)
                positions[rows] = torch.arange(shared, len(path))
                visible[rows, torch.from_numpy(path[:shared])] = True
                visible[rows, first : first + new] = torch.ones(new, new, dtype=torch.bool).tril()
        return Branches(positions, visible)


def common_length(a: Sequence[int] | Tokens, b: Sequence[int] | Tokens) -> int:
    """Return how many tokens two texts have in common from their start."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(differ[0]) if len(differ) else size


def _retained(previous: Tokens, first: _Sequence) -> int:
    """Return how many tokens of the previous text can be reused by the first text of a batch."""
    return min(common_length(previous, first.tokens), len(first.tokens) - first.needed)


def _batches(
    sequences: Sequence[_Sequence], tokens_at_once: int, texts_at_once: int | None = None
) -> Iterator[list[_Sequence]]:
    """Sort texts by their tokens, and divide them so that a batch has few new tokens and computes all it needs."""
    batch: list[_Sequence] = []
    last = np.zeros(0, np.int64)
    tokens = retained = 0
    for item in sorted(sequences, key=lambda sequence: sequence.tokens.astype(">u4").tobytes()):
        shared = common_length(last, item.tokens)
        retained = min(retained, shared)  # of the item's tokens, those that an earlier batch computed
        is_full = tokens + len(item.tokens) - shared > tokens_at_once or len(batch) == texts_at_once
        if batch and (is_full or len(item.tokens) - item.needed < retained):
            yield batch
            batch = []
        if not batch:
            retained = shared = _retained(last, item)
            tokens = 0
        batch.append(item)
        tokens += len(item.tokens) - shared
        last = item.tokens
    if batch:
        yield batch
