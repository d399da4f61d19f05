"""Blocks of tokens from the shards of `tokenize`.

A block is `context + 1` consecutive tokens: all but the last are inputs, all but the first are targets. Blocks follow
each other without gaps over all shards of a split, regardless of document boundaries.
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
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.engine.manifest import Count
from pipelines.errors import InputError, translate_format_errors
from pipelines.model.training.mixture import SINGLE, Sources, segments_of
from pipelines.model.training.order import BatchOrder, Block
from pipelines.model.training.recipe import Recipe
from pipelines.records import inputs
from pipelines.tokenizers.formats import TOKENIZER

Tokens = npt.NDArray[np.int64]
_VERIFYING_THREADS = 4
# A mapped shard keeps its file open: those of 1,000 billion tokens. The usual limit is 1,024.
_OPEN_FILES = 10_000
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


class Span(NamedTuple):
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
        """Return the tokens `start` to `stop` as int64; raise InputError for a token id outside the vocabulary."""
        return self.read_ranges([start], [stop - start])

    def read_blocks(self, numbers: Sequence[int], context: int) -> Tokens:
        """Return blocks as [blocks, context + 1]; raise InputError for a token id outside the vocabulary."""
        starts = [number * context for number in numbers]
        return self.read_ranges(starts, [context + 1] * len(starts)).reshape(-1, context + 1)

    def read_ranges(self, starts: Sequence[int], lengths: Sequence[int]) -> Tokens:
        """Return the tokens of ranges one after another; raise InputError for a token id outside the vocabulary."""
        tokens = np.empty(sum(lengths), np.int64)
        filled = 0
        for start, length in zip(starts, lengths, strict=True):
            for span in self.spans(start, start + length):
                count = span.stop - span.start
                tokens[filled : filled + count] = self.shards[span.shard][span.start : span.stop]
                filled += count
        if tokens.size and tokens.max() >= self.vocab_size:
            raise InputError(
                f"{self.path}: contains token {tokens.max()}, but the vocabulary has {self.vocab_size} entries; "
                "delete this folder and re-run `webtext tokenize`"
            )
        return tokens

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Yield the parts of shards that the tokens `start` to `stop` of the split consist of."""
        shard = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            offset, end = self._starts[shard], min(stop, self._starts[shard + 1])
            if start < end:
                yield Span(shard, start - offset, end - offset)
            start, shard = end, shard + 1


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


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The token folders of a training by name; a single one is named `tokens`. All have the same tokenizer."""

    sources: Mapping[str, TokenFolder]

    @property
    def first(self) -> TokenFolder:
        """The folder from which to read what all have in common, the vocabulary."""
        return next(iter(self.sources.values()))

    @property
    def is_single(self) -> bool:
        """Whether the training has no --mix."""
        return [*self.sources] == [SINGLE]

    def order(self, recipe: Recipe) -> BatchOrder:
        """Return the order of blocks; raise InputError if a source of the recipe is too small, or is not named."""
        read = {name for segment in segments_of(recipe.mixture) for name in segment["shares"]}
        for name in sorted(read - self.sources.keys()):
            raise InputError(f"the training has read {name}; add --mix {name}=DIR:0, or the weight that it should have")
        blocks = {name: folder.train.blocks(recipe.context) for name, folder in self.sources.items()}
        for name in sorted(read):
            folder = self.sources[name]
            if blocks[name] < (needed := recipe.batch_size if self.is_single else 1):
                raise InputError(
                    f"{folder.path}: the train split has {folder.train.tokens:,} tokens, {blocks[name]:,} blocks of "
                    f"{recipe.context}, fewer than {'one batch of ' * self.is_single}{needed}; "
                    "use more text, or a smaller --set batch_size=..., --set context=... or --preset"
                )
        return BatchOrder(blocks, recipe.batch_size, recipe.seed, recipe.mixture)

    def read_blocks(self, blocks: Sequence[Block], context: int) -> Tokens:
        """Return blocks as [blocks, context + 1]; raise InputError for a token id outside the vocabulary."""
        rows = np.empty((len(blocks), context + 1), np.int64)
        for name in {block.source for block in blocks}:
            places = [place for place, block in enumerate(blocks) if block.source == name]
            rows[places] = self.sources[name].train.read_blocks([blocks[place].number for place in places], context)
        return rows


def open_mixture(sources: Sources, *, verify: bool = True) -> Mixture:
    """Open the folders of sources with `open_tokens`; raise InputError for different tokenizers."""
    folders = {name: open_tokens(source.folder, verify=verify) for name, source in sources.items()}
    first, *others = folders.values()
    for folder in others:
        if folder.tokenizer != first.tokenizer:
            both = f"{folder.path}: has another tokenizer.json (by its SHA-256) than {first.path}"
            raise InputError(f"{both}; tokenize all sources of a mixture with the same tokenizer")
    # One copy of the tokenizer, which has megabytes.
    return Mixture({name: dataclasses.replace(folder, tokenizer=first.tokenizer) for name, folder in folders.items()})


def open_tokens(path: str, *, verify: bool = True) -> TokenFolder:
    """Verify the files of a folder of `tokenize` and map its shards into memory.

    Without `verify` only sizes are checked: where another process has verified them. Raises InputError for an
    incomplete folder or one of another stage, and for shards of another tokenizer, DamagedShardError for a file with a
    wrong checksum, and StorageError for a remote folder, which cannot be memory-mapped.
    """
    storage.raise_file_limit(_OPEN_FILES)
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
