"""Blocks of tokens from the shards of `tokenize`, in an order that needs no state.

A block is `context + 1` consecutive tokens: all but the last are inputs, all but the first are targets. Blocks follow
each other without gaps over all shards of a split, regardless of document boundaries. The blocks of a step are a
function of the step and the seed, so a resumed run reads exactly what an uninterrupted one reads.
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
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.engine.manifest import Count
from pipelines.errors import InputError, translate_format_errors
from pipelines.model.training.recipe import Recipe
from pipelines.records import inputs
from pipelines.tokenizers.formats import TOKENIZER

Tokens = npt.NDArray[np.int64]
_VERIFYING_THREADS = 4
TOKENS = "tokens.json"


class _Shard(TypedDict):
    name: str
    tokens: Count
    documents_file: str


class _Description(TypedDict):
    dtype: Literal["uint16", "uint32"]
    header_bytes: Count
    vocab_size: Count
    end_of_text: Count
    tokenizer_sha256: str
    splits: dict[str, list[_Shard]]


@dataclasses.dataclass(frozen=True)
class Span:
    """Tokens `start` to `stop` (exclusive) of the shard with this index."""

    shard: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Split:
    """The tokens of a split as one sequence over its memory-mapped shards; `tables` of documents, by shard file."""

    path: str
    shards: tuple[npt.NDArray[Any], ...]
    vocab_size: int
    tables: Mapping[str, inputs.InputFile] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [0, *itertools.accumulate(len(shard) for shard in self.shards)]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self._starts[-1]

    def blocks(self, context: int) -> int:
        """Return the number of complete blocks."""
        return max(0, self.tokens - 1) // context

    def read(self, start: int, stop: int) -> Tokens:
        """Return the tokens `start` to `stop` as int64, across shard boundaries.

        Raises InputError for a token id outside the vocabulary.
        """
        row = np.empty(stop - start, np.int64)
        self._copy(start, row)
        return self._checked(row)

    def read_blocks(self, numbers: Sequence[int], context: int) -> Tokens:
        """Return blocks as [blocks, context + 1]; raise InputError for a token id outside the vocabulary."""
        rows = np.empty((len(numbers), context + 1), np.int64)
        for number, row in zip(numbers, rows, strict=True):
            self._copy(number * context, row)
        return self._checked(rows)

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Yield the parts of shards that the tokens `start` to `stop` of the split consist of."""
        shard = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            offset, end = self._starts[shard], min(stop, self._starts[shard + 1])
            if start < end:
                yield Span(shard, start - offset, end - offset)
            start, shard = end, shard + 1

    def _copy(self, start: int, row: Tokens) -> None:
        """Fill a row with the tokens from `start`."""
        filled = 0
        for span in self.spans(start, start + len(row)):
            length = span.stop - span.start
            row[filled : filled + length] = self.shards[span.shard][span.start : span.stop]
            filled += length

    def _checked(self, tokens: Tokens) -> Tokens:
        if tokens.size and tokens.max() >= self.vocab_size:
            raise InputError(
                f"{self.path}: contains token {tokens.max()}, but the vocabulary has {self.vocab_size} entries; "
                "delete this folder and re-run `webtext tokenize`"
            )
        return tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenFolder:
    """The folder of `tokenize`."""

    path: str
    fingerprint: str
    vocab_size: int
    end_of_text: int
    train: Split
    held_out: Split
    tokenizer: bytes

    def check_batch_filled(self, recipe: Recipe) -> None:
        """Raise InputError if the train split has fewer blocks than one batch."""
        blocks = self.train.blocks(recipe.context)
        if blocks < recipe.batch_size:
            raise InputError(
                f"{self.path}: the train split has {self.train.tokens:,} tokens, {blocks:,} blocks of "
                f"{recipe.context}, fewer than one batch of {recipe.batch_size}; "
                "use more text, or a smaller --set batch_size=..., --set context=... or --preset"
            )


def open_tokens(path: str, *, verify: bool = True) -> TokenFolder:
    """Verify the files of a folder of `tokenize` and map its shards into memory.

    Without `verify` only sizes are checked: where another process has verified them. Raises InputError for an
    incomplete folder or one of another stage, and for shards of another tokenizer, DamagedShardError for a file with a
    wrong checksum, and StorageError for a remote folder, which cannot be memory-mapped.
    """
    folder = inputs.open_stage(path, ("tokenize",))
    if verify:
        with ThreadPoolExecutor(_VERIFYING_THREADS) as threads:
            list(threads.map(inputs.InputFile.verify, folder.files("")))
    description = read_token_description(folder)
    return TokenFolder(
        path=path,
        fingerprint=folder.manifest.fingerprint(),
        vocab_size=description["vocab_size"],
        end_of_text=description["end_of_text"],
        train=_open_split(folder, description, "train"),
        held_out=_open_split(folder, description, "held-out"),
        tokenizer=read_shards_tokenizer(folder, description),
    )


def read_token_description(folder: inputs.StageFolder) -> dict[str, Any]:
    """Read the description of token shards; raise InputError, which names the field, if it is not one."""
    path = folder.file(TOKENS).path
    with translate_format_errors(path, "a description of token shards; re-run `webtext tokenize` to rebuild it"):
        description: dict[str, Any] = storage.read_json(path)
        msgspec.convert(description, _Description)
        return description


def read_shards_tokenizer(folder: inputs.StageFolder, description: Mapping[str, Any]) -> bytes:
    """Read the tokenizer of token shards; raise InputError if it is not the one that their description names."""
    path = folder.file(TOKENIZER).path
    data = storage.read_bytes(path)
    if hashlib.sha256(data).hexdigest() != description["tokenizer_sha256"]:
        raise InputError(
            f"{path}: not the tokenizer that the shards were encoded with ({TOKENS} has a different SHA-256); "
            f"delete {folder.path} and re-run `webtext tokenize`"
        )
    return data


def _open_split(folder: inputs.StageFolder, description: Mapping[str, Any], name: str) -> Split:
    dtype = np.dtype(description["dtype"]).newbyteorder("<")
    listed = description["splits"].get(name, [])
    shards = [
        _map_shard(folder.file(shard["name"]).path, dtype, description["header_bytes"], shard["tokens"])
        for shard in listed
    ]
    tables = {shard["name"]: folder.file(shard["documents_file"]) for shard in listed}
    return Split(folder.path, tuple(shards), description["vocab_size"], tables)


def _map_shard(path: str, dtype: np.dtype[Any], header_bytes: int, tokens: int) -> npt.NDArray[Any]:
    expected = header_bytes + tokens * dtype.itemsize
    if storage.size_bytes(path) != expected:
        raise InputError(f"{path}: has {storage.size_bytes(path)} bytes, but tokens.json says {expected}")
    if tokens == 0:
        return np.empty(0, dtype)  # an empty file cannot be memory-mapped
    mapped = np.memmap(storage.mapped_path(path), dtype, mode="r", offset=header_bytes, shape=(tokens,))
    # A plain array over the same memory takes a fraction of the time to slice.
    return mapped.view(np.ndarray)


class BlockOrder:
    """The blocks of every step: each epoch is a new seeded permutation of all blocks.

    Keeps the permutation of one epoch, 4 bytes per block up to 4 billion blocks; drawing it temporarily takes about 20
    bytes per block.
    """

    def __init__(self, blocks: int, batch_size: int, seed: int) -> None:
        self._blocks = blocks
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._permutation: npt.NDArray[np.unsignedinteger] = np.empty(0, np.uint32)

    def batch(self, step: int) -> list[int]:
        """Return the block numbers of a step, counted from 0; a batch may extend into the next epoch."""
        position, stop = step * self._batch_size, (step + 1) * self._batch_size
        numbers: list[int] = []
        while position < stop:
            epoch, start = divmod(position, self._blocks)
            if epoch != self._epoch:
                # Sorting raw bits, not Generator.permutation: numpy guarantees the bits of Philox in every version.
                bits = np.random.Philox(key=(self._seed << 64) | epoch).random_raw(self._blocks)
                self._permutation = np.argsort(bits, kind="stable").astype(np.min_scalar_type(self._blocks))
                self._epoch = epoch
            numbers += self._permutation[start : start + stop - position].tolist()
            position = min(stop, (epoch + 1) * self._blocks)
        return numbers


def token_bytes(tokenizer: bytes, vocab_size: int) -> npt.NDArray[np.int64] | None:
    """Return the number of text bytes of each token, or None if the tokenizer is not byte-level.

    A byte-level vocabulary writes each byte as one character; special tokens have no bytes.
    """
    parsed = json.loads(tokenizer)
    if (parsed.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    lengths = np.zeros(vocab_size, np.int64)
    for text, id in parsed["model"]["vocab"].items():
        lengths[id] = len(text)
    lengths[[token["id"] for token in parsed.get("added_tokens", [])]] = 0
    return lengths
