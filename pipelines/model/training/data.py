"""Blocks of tokens from the shards of `tokenize`, in an order that needs no state.

A block is `context + 1` neighbouring tokens: all but the last are read, all but the first are predicted. The blocks
follow each other without a gap over all shards of a split, whatever document they cut. Which blocks belong to step k
follows from k and the seed alone, so that a resumed run reads exactly what a whole one would have.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.core import inputs, storage
from pipelines.core.errors import InputError

Tokens = npt.NDArray[np.int64]
_COUNTED_TOKENS = 1 << 20
_VERIFYING_THREADS = 4


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """The file of a shard, and the table of its documents; None where tokenize wrote no such table."""

    name: str
    documents: inputs.InputFile | None


@dataclasses.dataclass(frozen=True)
class Span:
    """Tokens of one shard, which has the number `shard`, from `start` up to `stop`."""

    shard: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Split:
    """The tokens of one split as one long row over its shards, which are mapped into memory; `files` are theirs."""

    path: str
    shards: tuple[npt.NDArray[Any], ...]
    vocab_size: int
    files: tuple[ShardFile, ...] = ()

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [0, *itertools.accumulate(len(shard) for shard in self.shards)]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self._starts[-1]

    def blocks(self, context: int) -> int:
        """Return the number of whole blocks."""
        return max(0, self.tokens - 1) // context

    def read(self, start: int, stop: int) -> Tokens:
        """Return the tokens from `start` up to `stop`, also across shards, as int64.

        Raises InputError for an id that the vocabulary does not have.
        """
        row = np.empty(stop - start, np.int64)
        self._copy(start, row)
        return self._checked(row)

    def read_blocks(self, numbers: Sequence[int], context: int) -> Tokens:
        """Return blocks, int64 [blocks, context + 1]; raise InputError for an id that the vocabulary does not have."""
        rows = np.empty((len(numbers), context + 1), np.int64)
        for number, row in zip(numbers, rows, strict=True):
            self._copy(number * context, row)
        return self._checked(rows)

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Yield where the tokens from `start` up to `stop` of the row stand in the shards."""
        shard = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            offset, end = self._starts[shard], min(stop, self._starts[shard + 1])
            if start < end:
                yield Span(shard, start - offset, end - offset)
            start, shard = end, shard + 1

    def _copy(self, start: int, row: Tokens) -> None:
        """Fill a row with the tokens from `start` on."""
        filled = 0
        for span in self.spans(start, start + len(row)):
            length = span.stop - span.start
            row[filled : filled + length] = self.shards[span.shard][span.start : span.stop]
            filled += length

    def _checked(self, tokens: Tokens) -> Tokens:
        if tokens.size and tokens.max() >= self.vocab_size:
            raise InputError(
                f"{self.path}: holds token {tokens.max()}, but its vocabulary has {self.vocab_size} entries; "
                "run `webtext tokenize` again with --overwrite"
            )
        return tokens

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
    tokenizer_sha256: str


def token_fingerprint(path: str) -> str:
    """Return what identifies the content of a folder of `tokenize`; raise InputError where it is not finished."""
    return inputs.open_stage(path, ("tokenize",)).fingerprint


def open_tokens(path: str, *, verify: bool = True) -> TokenFolder:
    """Check the files of a folder of `tokenize` and map its shards into memory.

    Without `verify` only their sizes are checked: for a process beside one that has read them all. Raises InputError
    for an unfinished or foreign folder and for shards of another tokenizer than the one beside them, DamagedShardError
    for a file that is not as written, and StorageError for a remote folder, which cannot be mapped.
    """
    folder = inputs.open_stage(path, ("tokenize",))
    if verify:
        with ThreadPoolExecutor(_VERIFYING_THREADS) as threads:
            list(threads.map(inputs.InputFile.verify, folder.files("")))
    about = storage.read_json(folder.file("tokens.json").path)
    return TokenFolder(
        path,
        folder.fingerprint,
        about["vocab_size"],
        about["end_of_text"],
        _open_split(folder, about, "train"),
        _open_split(folder, about, "held-out"),
        _read_tokenizer(folder, about),
        about["tokenizer_sha256"],
    )


def _open_split(folder: inputs.StageFolder, about: Mapping[str, Any], name: str) -> Split:
    dtype = np.dtype(about["dtype"]).newbyteorder("<")
    listed = about["splits"].get(name, [])
    shards = [
        _map_shard(folder.file(shard["name"]).path, dtype, about["header_bytes"], shard["tokens"]) for shard in listed
    ]
    files = [
        ShardFile(shard["name"], folder.file(table) if (table := shard.get("documents_file")) else None)
        for shard in listed
    ]
    return Split(folder.path, tuple(shards), about["vocab_size"], tuple(files))


def _read_tokenizer(folder: inputs.StageFolder, about: Mapping[str, Any]) -> bytes:
    path = folder.file("tokenizer.json").path
    data = storage.read_bytes(path)
    if hashlib.sha256(data).hexdigest() != about.get("tokenizer_sha256"):
        raise InputError(
            f"{path}: is not the tokenizer that the shards beside it were made with (tokens.json has the hash of "
            "another); run `webtext tokenize` again with --overwrite"
        )
    return data


def _map_shard(path: str, dtype: np.dtype[Any], header_bytes: int, tokens: int) -> npt.NDArray[Any]:
    expected = header_bytes + tokens * dtype.itemsize
    if storage.size_bytes(path) != expected:
        raise InputError(f"{path}: has {storage.size_bytes(path)} bytes, but tokens.json says {expected}")
    if tokens == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    mapped = np.memmap(storage.local_path(path), dtype, mode="r", offset=header_bytes, shape=(tokens,))
    # The same memory as a plain array, which takes a fraction of the time to slice.
    return mapped.view(np.ndarray)


class BlockOrder:
    """The blocks of every step: each epoch is a new seeded order of all blocks, without replacement.

    Keeps the order of one epoch, 4 bytes a block up to 4 billion blocks; drawing it takes some 20 bytes a block for as
    long as it lasts.
    """

    def __init__(self, blocks: int, batch_size: int, seed: int) -> None:
        self._blocks = blocks
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: npt.NDArray[np.unsignedinteger] = np.empty(0, np.uint32)

    def batch(self, step: int) -> list[int]:
        """Return the numbers of the blocks of a step, counted from 0; a batch may reach into the next epoch."""
        position, stop = step * self._batch_size, (step + 1) * self._batch_size
        numbers: list[int] = []
        while position < stop:
            epoch, place = divmod(position, self._blocks)
            taken = self._order_of(epoch)[place : place + stop - position].tolist()
            numbers += taken
            position += len(taken)
        return numbers

    def _order_of(self, epoch: int) -> npt.NDArray[np.unsignedinteger]:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self._order

    def _shuffled(self, epoch: int) -> npt.NDArray[np.unsignedinteger]:
        # Sorting raw bits, not Generator.permutation: numpy vouches for the bits of Philox in every version.
        bits = np.random.Philox(key=(self._seed << 64) | epoch).random_raw(self._blocks)
        return np.argsort(bits, kind="stable").astype(np.min_scalar_type(self._blocks))


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
