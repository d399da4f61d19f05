"""The shards of `tokenize` as a map-style dataset, for training loops other than ours; reading needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow.compute as pc

from pipelines import storage
from pipelines.errors import InputError, UsageError
from pipelines.model.diagnostics.batch_documents import read_pieces
from pipelines.model.training.data import Split, Tokens, open_tokens
from pipelines.model.training.order import random_order
from pipelines.records import shards
from pipelines.tokenizers.formats import TOKENIZER

Item = dict[str, Tokens]

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    Base = Dataset[Item]
else:
    Base = object  # torch's loaders require no more, and importing torch takes seconds


class TokenDataset(Base):
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
        self.path, self.split, self.length, self.documents, self.seed = path, split, length, documents, seed
        self.options = dict[str, Any](split=split, length=length, overlap=overlap, documents=documents, seed=seed)
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
        """Return the order of the items in an epoch, counted from 0; that of `pretrain` for its blocks and seed."""
        return random_order(len(self), self.seed, epoch)

    def trace(self, index: int) -> list[dict[str, Any]]:
        """Return the documents of an item in order, with their `first` and `last` token in it, counted from 0.

        The first one is token `document_start` of the document and `position` of the file. A document that is divided
        between files is listed twice. Raises what `read_pieces` raises.
        """
        (start,), (length,) = self._locate([index])
        tables, documents, first = list(self._tokens.tables.items()), list[dict[str, Any]](), 0
        for span in self._tokens.spans(start, start + length):
            file, table = tables[span.shard]
            for piece in read_pieces(table, [span], self.split, file)[span]:
                last = first + piece.stop - piece.start - 1
                place = {"document_start": piece.document_start, "file": file, "position": piece.start}
                documents.append({"id": piece.id, "url": piece.url, "first": first, "last": last, **place})
                first = last + 1
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
    starts, removed, end = list[Tokens](), [np.empty(0, np.bool_)], 0
    for table, shard in zip(split.tables.values(), split.shards, strict=True):
        shard_end = end + len(shard)
        for batch in shards.read_batches(table.path, ["id", "tokens", "document_offset"], rows=1 << 16):
            tokens = batch.column("tokens").to_numpy()
            stops = end + np.cumsum(tokens)
            is_first = batch.column("document_offset").to_numpy() == 0
            starts.append((stops - tokens)[is_first])
            removed.append(pc.equal(batch.column("id"), "").to_numpy(zero_copy_only=False)[is_first])
            end += int(tokens.sum())
        if end != shard_end:
            problem = f"does not cover the {len(shard):,} tokens of its shard"
            raise InputError(f"{table.path}: {problem}; delete the folder and re-run `webtext tokenize`")
    bounds = np.concatenate([*starts, [end]])
    return bounds, np.where(np.concatenate(removed), 0, np.diff(bounds) - 1)
