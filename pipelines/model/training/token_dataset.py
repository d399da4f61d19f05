"""The shards of `tokenize` as a map-style dataset, for training loops other than ours; reading needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import numpy as np
import pyarrow.compute as pc

from pipelines import storage
from pipelines.errors import InputError, UsageError
from pipelines.model.diagnostics.batch_documents import read_pieces
from pipelines.model.training.data import Split, Tokens, open_tokens
from pipelines.model.training.order import random_order
from pipelines.records import shards
from pipelines.tokenizers.formats import TOKENIZER

# Of a table of documents, decoded at a time: some 5 MB.
_TABLE_ROWS = 1 << 16


class Item(TypedDict):
    """The token ids of an item, int64."""

    input_ids: Tokens


if TYPE_CHECKING:
    from torch.utils.data import Dataset

    _Base = Dataset[Item]  # which annotations of torch require, unlike its code
else:
    _Base = object


class TracedDocument(NamedTuple):
    """A document of which an item has the tokens `first` to `last`, counted from 0 in the item.

    `first` is token `document_start` of the document, and token `position` of `file`: `tokenize --trace FILE:POSITION`
    shows its text.
    """

    id: str
    url: str | None
    first: int
    last: int
    document_start: int
    file: str
    position: int


class TokenDataset(_Base):
    """The tokens of a split, in items of `length` tokens of which each shares `overlap` with the next one.

    By default items are blocks, which follow each other regardless of documents: with a length of `context + 1` and an
    overlap of 1 they are those of `pretrain`. With `documents`, an item is a document without its end-of-text token, or
    a part of a longer one, and its length varies. This takes 16 bytes of memory per document; blocks take none.

    Without `verify`, the checksums of files are not checked. Raises UsageError for invalid arguments, InputError for a
    split without items, and what `open_tokens` raises.
    """

    def __init__(
        self,
        path: str,
        split: Literal["train", "held-out"] = "train",
        *,
        length: int,
        overlap: int = 0,
        documents: bool = False,
        seed: int = 0,
        verify: bool = True,
    ) -> None:
        if split not in ("train", "held-out"):
            raise UsageError(f"split {split!r}: expected 'train' or 'held-out'")
        if not 0 <= overlap < length:
            raise UsageError(f"length {length}, overlap {overlap}: expected 0 <= overlap < length")
        if not 0 <= seed < 1 << 64:
            raise UsageError(f"seed {seed}: expected 0 <= seed < 2^64")
        self.path, self.split, self.length, self.overlap = path, split, length, overlap
        self.documents, self.seed = documents, seed
        folder = open_tokens(path, verify=verify)
        self.vocab_size, self.end_of_text, self.fingerprint = folder.vocab_size, folder.end_of_text, folder.fingerprint
        self.tokenizer_path = storage.join(path, TOKENIZER)
        self._tokens = folder.train if split == "train" else folder.held_out
        self._step = length - overlap
        if documents:
            self._starts, lengths = _read_documents(self._tokens)
            items = np.where(lengths > 0, np.maximum(1, -(-(lengths - overlap) // self._step)), 0)
            self._first_items = np.concatenate([[0], np.cumsum(items)])
            self._items = int(self._first_items[-1])
        else:
            self._items = max(0, self._tokens.tokens - overlap) // self._step
        if not self._items:
            kind = "document" if documents else f"block of {length:,}"
            raise InputError(f"{path}: the {split} split has {self._tokens.tokens:,} tokens, but no {kind}")

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that determine the items and their order."""
        return {name: getattr(self, name) for name in ("split", "length", "overlap", "documents", "seed")}

    def __reduce__(self) -> tuple[Callable[[], TokenDataset], tuple[()]]:
        """Open the folder again in another process, instead of copying its tokens there."""
        return functools.partial(TokenDataset, self.path, **self.options, verify=False), ()

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | Tokens) -> list[Item]:
        """Return several items, views of one array; raise InputError for a token id outside the vocabulary."""
        starts, lengths = self._locate(indices)
        tokens = self._tokens.read_ranges(starts, lengths)
        ends = np.cumsum(lengths).tolist()
        return [{"input_ids": tokens[end - length : end]} for end, length in zip(ends, lengths, strict=True)]

    def epoch_order(self, epoch: int) -> Tokens:
        """Return the order of the items in an epoch, counted from 0: with the same seed and blocks, that of `pretrain`.

        Temporarily takes about 20 bytes per item.
        """
        return random_order(len(self), self.seed, epoch)

    def trace(self, index: int) -> list[TracedDocument]:
        """Return the documents that an item came from, in order; one that is divided between files is listed twice.

        Raises DamagedShardError for a document table with a wrong checksum, InputError for an incomplete one.
        """
        (start,), (length,) = self._locate([index])
        tables, documents, first = list(self._tokens.tables.items()), list[TracedDocument](), 0
        for span in self._tokens.spans(start, start + length):
            file, table = tables[span.shard]
            for piece in read_pieces(table, [span], self.split, file)[span]:
                stop = first + piece.stop - piece.start
                document = TracedDocument(
                    piece.id, piece.url, first, stop - 1, piece.document_start, piece.file, piece.start
                )
                documents.append(document)
                first = stop
        return documents

    def _locate(self, indices: Sequence[int] | Tokens) -> tuple[list[int], list[int]]:
        """Return the first token of items in the split, and their lengths; raise IndexError for an item out of range.

        A negative index counts from the end.
        """
        numbers = np.asarray(indices, np.int64)
        if numbers.size and not -len(self) <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"{self.path}: the {self.split} split has {len(self):,} items, numbered from 0")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        if not self.documents:
            return (numbers * self._step).tolist(), [self.length] * len(numbers)
        documents = np.searchsorted(self._first_items, numbers, side="right") - 1
        starts = self._starts[documents] + (numbers - self._first_items[documents]) * self._step
        # Without the end-of-text token before the next document.
        lengths = np.minimum(self._starts[documents + 1] - 1 - starts, self.length)
        return starts.tolist(), lengths.tolist()


def _read_documents(split: Split) -> tuple[Tokens, Tokens]:
    """Return where documents start in a split and where the last one stops, and their lengths without end-of-text.

    A removed document has no tokens. Raises InputError for a table that does not cover its shard.
    """
    starts, removed, shard_start = list[Tokens](), [np.empty(0, np.bool_)], 0
    columns = ["id", "offset", "tokens", "document_offset"]
    for table, shard in zip(split.tables.values(), split.shards, strict=True):
        covered, has_gaps = 0, False
        for batch in shards.read_batches(table.path, columns, rows=_TABLE_ROWS):
            offsets, tokens, earlier_tokens = (batch.column(name).to_numpy() for name in columns[1:])
            has_gaps |= tokens.min() < 1 or not np.array_equal(offsets, covered + np.cumsum(tokens) - tokens)
            covered += int(tokens.sum())
            is_first = earlier_tokens == 0
            starts.append(shard_start + offsets[is_first])
            removed.append(pc.equal(batch.column("id"), "").to_numpy(zero_copy_only=False)[is_first])
        if has_gaps or covered != len(shard):
            problem = f"does not cover the {len(shard):,} tokens of its shard"
            raise InputError(f"{table.path}: {problem}; delete the folder and re-run `webtext tokenize`")
        shard_start += len(shard)
    bounds = np.concatenate([*starts, [shard_start]])
    return bounds, np.where(np.concatenate(removed), 0, np.diff(bounds) - 1)
