"""Blocks of tokens from the shards of `tokenize`, in an order that needs no state.

A block is `context + 1` neighbouring tokens: all but the last are read, all but the first are predicted. The blocks
follow each other without a gap over all shards of a split, whatever document they cut. Which blocks belong to step k
follows from k and the seed alone, so that a resumed run reads exactly what a whole one would have.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.core import inputs, storage
from pipelines.core.errors import InputError

Tokens = npt.NDArray[np.int64]
_COUNTED_TOKENS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Split:
    """The tokens of one split as one long row over its shards, which are mapped into memory."""

    path: str
    shards: tuple[npt.NDArray[Any], ...]
    vocab_size: int

    @functools.cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self._starts[-1])

    def blocks(self, context: int) -> int:
        """Return the number of whole blocks."""
        return max(0, self.tokens - 1) // context

    def read(self, start: int, stop: int) -> Tokens:
        """Return the tokens from `start` up to `stop`, also across shards, as int64.

        Raises InputError for an id that the vocabulary does not have.
        """
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        while start < stop:
            end = min(stop, int(self._starts[first + 1]))
            offset = int(self._starts[first])
            parts.append(self.shards[first][start - offset : end - offset])
            start, first = end, first + 1
        row = np.concatenate(parts).astype(np.int64)
        if row.max() >= self.vocab_size:
            raise InputError(
                f"{self.path}: holds token {row.max()}, but its vocabulary has {self.vocab_size} entries; "
                "run `webtext tokenize` again with --overwrite"
            )
        return row

    def block(self, number: int, context: int) -> Tokens:
        """Return block `number`: `context + 1` tokens."""
        return self.read(number * context, (number + 1) * context + 1)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for shard in self.shards:
            for start in range(0, len(shard), _COUNTED_TOKENS):
                yield shard[start : start + _COUNTED_TOKENS]


@dataclasses.dataclass(frozen=True)
class TokenFolder:
    """The folder of `tokenize`."""

    path: str
    fingerprint: str
    vocab_size: int
    end_of_text: int
    train: Split
    held_out: Split
    tokenizer: bytes


def token_fingerprint(path: str) -> str:
    """Return what identifies the content of a folder of `tokenize`; raise InputError where it is not finished."""
    return inputs.open_stage(path, ("tokenize",)).fingerprint


def open_tokens(path: str) -> TokenFolder:
    """Check the files of a folder of `tokenize` and map its shards into memory.

    Raises InputError for an unfinished or foreign folder, DamagedShardError for a file that is not as written, and
    StorageError for a remote folder, which cannot be mapped.
    """
    folder = inputs.open_stage(path, ("tokenize",))
    for file in folder.files(""):
        file.verify()
    about = storage.read_json(folder.file("tokens.json").path)
    dtype = np.dtype(about["dtype"]).newbyteorder("<")

    def split(name: str) -> Split:
        shards = [
            _map_shard(folder.file(shard["name"]).path, dtype, about["header_bytes"], shard["tokens"])
            for shard in about["splits"].get(name, [])
        ]
        return Split(path, tuple(shards), about["vocab_size"])

    return TokenFolder(
        path,
        folder.fingerprint,
        about["vocab_size"],
        about["end_of_text"],
        split("train"),
        split("held-out"),
        storage.read_bytes(folder.file("tokenizer.json").path),
    )


def _map_shard(path: str, dtype: np.dtype[Any], header_bytes: int, tokens: int) -> npt.NDArray[Any]:
    expected = header_bytes + tokens * dtype.itemsize
    if storage.size_bytes(path) != expected:
        raise InputError(f"{path}: has {storage.size_bytes(path)} bytes, but tokens.json says {expected}")
    if tokens == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(storage.local_path(path), dtype, mode="r", offset=header_bytes, shape=(tokens,))


class BlockOrder:
    """The blocks of every step: each epoch is a new seeded order of all blocks, without replacement.

    Keeps the order of one epoch, 8 bytes a block: about 70 MB for 9 billion tokens in blocks of 1,024, and for a moment
    twice as much while an epoch is shuffled.
    """

    def __init__(self, blocks: int, batch_size: int, seed: int) -> None:
        self._blocks = blocks
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def batch(self, step: int) -> list[int]:
        """Return the numbers of the blocks of a step, counted from 0; a batch may reach into the next epoch."""
        first = step * self._batch_size
        return [self._at(position) for position in range(first, first + self._batch_size)]

    def _at(self, position: int) -> int:
        epoch, place = divmod(position, self._blocks)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return int(self._order[place])

    def _shuffled(self, epoch: int) -> npt.NDArray[np.int64]:
        # Sorting raw bits, not Generator.permutation: numpy vouches for the bits of Philox in every version.
        bits = np.random.Philox(key=(self._seed << 64) | epoch).random_raw(self._blocks)
        return np.argsort(bits, kind="stable")


def token_bytes(tokenizer: bytes, vocab_size: int) -> npt.NDArray[np.int64] | None:
    """Return how many bytes of text each token stands for, or None where the tokenizer does not work on bytes.

    A byte-level vocabulary writes each byte as one character; special tokens stand for no text.
    """
    parsed = json.loads(tokenizer)
    if (parsed.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    lengths = np.zeros(vocab_size, np.int64)
    for text, id in parsed["model"]["vocab"].items():
        lengths[id] = len(text)
    lengths[[token["id"] for token in parsed.get("added_tokens", [])]] = 0
    return lengths


def spread_evenly(chosen: int, blocks: int) -> Sequence[int]:
    """Return the numbers of at most `chosen` blocks, spread evenly over all of them."""
    taken = min(chosen, blocks)
    return [number * blocks // taken for number in range(taken)]
