"""What a batch is made of: the documents of its blocks, with their URLs and their text.

The tables that `tokenize` writes beside its shards say which document stands where. Of these, only the row groups are
read that hold documents of the batch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipelines.core import inputs, shards, storage
from pipelines.core.errors import InputError
from pipelines.model.training.data import BlockOrder, ShardFile, Span, Split, TokenFolder, Tokens
from pipelines.tokenizers.formats import parse_tokenizer

_COLUMNS = ["id", "url", "offset", "tokens", "document_offset"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """What of one document stands in a block: tokens `start` up to `stop` of a file, and their text.

    `document_start` is how many tokens of the document come before the piece. Where a folder has no tables of
    documents, `id` is empty and `url` None, and `document_start` is None where the document began earlier. A character
    that is cut by the edge of a block or of a file is U+FFFD in the text.
    """

    id: str
    url: str | None
    split: str
    file: str
    start: int
    stop: int
    document_start: int | None
    text: str


@dataclasses.dataclass(frozen=True)
class BatchBlock:
    """A block of a batch: its number in the train split, and the pieces of documents in it, in their order."""

    number: int
    pieces: tuple[Piece, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the block for a JSON file."""
        return {"number": self.number, "pieces": [dataclasses.asdict(piece) for piece in self.pieces]}


def batch_numbers(blocks: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Return the numbers of the blocks that a step reads; steps are counted from 1, as in metrics.jsonl."""
    return BlockOrder(blocks, batch_size, seed).batch(step - 1)


def describe_blocks(tokens: TokenFolder, numbers: Sequence[int], context: int) -> list[BatchBlock]:
    """Return what blocks of the train split are made of.

    Each has `context + 1` tokens; the last is only predicted, and is the first of the block that follows it. Raises
    DamagedShardError for a table of documents that is not as written, InputError for one that does not say whose the
    tokens are.
    """
    split = tokens.train
    spans = [list(split.spans(number * context, (number + 1) * context + 1)) for number in numbers]
    found = _find_pieces(tokens, {span for each in spans for span in each})
    tokenizer = parse_tokenizer(tokens.tokenizer, storage.join(tokens.path, "tokenizer.json"))
    return [
        BatchBlock(number, _with_texts(tokenizer, row, [piece for span in each for piece in found[span]]))
        for number, row, each in zip(numbers, split.read_blocks(numbers, context), spans, strict=True)
    ]


def _with_texts(tokenizer: Tokenizer, row: Tokens, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    ends = np.cumsum([piece.stop - piece.start for piece in pieces])
    parts = [part.tolist() for part in np.split(row, ends[:-1])]
    # Special tokens are part of what the model reads, so `<|endoftext|>` is shown.
    texts = tokenizer.decode_batch(parts, skip_special_tokens=False)
    return tuple(dataclasses.replace(piece, text=text) for piece, text in zip(pieces, texts, strict=True))


def _find_pieces(tokens: TokenFolder, spans: set[Span]) -> dict[Span, list[Piece]]:
    """Return the pieces of spans, still without their text; each table is read once."""
    found: dict[Span, list[Piece]] = {}
    for number, file in enumerate(tokens.train.files):
        chosen = sorted((span for span in spans if span.shard == number), key=lambda span: span.start)
        if file.documents is None:
            found |= {span: _between_ends(tokens.train, file, span, tokens.end_of_text) for span in chosen}
        elif chosen:
            found |= _by_table(file, file.documents, chosen)
    return found


def _by_table(file: ShardFile, table: inputs.InputFile, spans: Sequence[Span]) -> dict[Span, list[Piece]]:
    table.verify()
    found: dict[Span, list[Piece]] = {span: [] for span in spans}
    starts, stops = _bounds(spans)
    for batch in shards.read_batches(table.path, _COLUMNS, _row_groups(table.path, spans)):
        offsets = batch.column("offset").to_numpy()
        firsts = np.searchsorted(offsets + batch.column("tokens").to_numpy(), starts, side="right")
        lasts = np.searchsorted(offsets, stops, side="left")
        for place in np.flatnonzero(firsts < lasts).tolist():
            rows = batch.slice(firsts[place], lasts[place] - firsts[place]).to_pylist()
            found[spans[place]] += [_piece(file, row, spans[place]) for row in rows]
    for span, pieces in found.items():
        _require_whole(table.path, span, pieces)
    return found


def _row_groups(path: str, spans: Sequence[Span]) -> list[int]:
    """Return the row groups with documents of the spans: each holds the tokens up to the first of the next."""
    with storage.open_read(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
    column = metadata.schema.names.index("offset")
    lowest = [metadata.row_group(group).column(column).statistics.min for group in range(metadata.num_row_groups)]
    starts, stops = _bounds(spans)
    firsts = np.maximum(np.searchsorted(lowest, starts, side="right") - 1, 0)
    ends = np.searchsorted(lowest, stops, side="left")
    return sorted({group for first, end in zip(firsts, ends, strict=True) for group in range(first, end)})


def _bounds(spans: Sequence[Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.array([span.start for span in spans]), np.array([span.stop for span in spans])


def _piece(file: ShardFile, row: Mapping[str, Any], span: Span) -> Piece:
    start, stop = max(span.start, row["offset"]), min(span.stop, row["offset"] + row["tokens"])
    document_start = row["document_offset"] + start - row["offset"]
    return Piece(row["id"], row["url"], "train", file.name, start, stop, document_start, "")


def _require_whole(path: str, span: Span, pieces: Sequence[Piece]) -> None:
    if sum(piece.stop - piece.start for piece in pieces) != span.stop - span.start:
        raise InputError(
            f"{path}: does not say whose the tokens {span.start:,} to {span.stop:,} of its shard are; "
            "run `webtext tokenize` again with --overwrite"
        )


def _between_ends(split: Split, file: ShardFile, span: Span, end_of_text: int) -> list[Piece]:
    """Return what lies between two `<|endoftext|>`, for shards without a table."""
    shard = split.shards[span.shard]
    ends = span.start + 1 + np.flatnonzero(shard[span.start : span.stop] == end_of_text)
    bounds = sorted({span.start, span.stop, *ends.tolist()})
    follows_end = span.start > 0 and int(shard[span.start - 1]) == end_of_text
    is_known = follows_end or (span.shard, span.start) == (0, 0)
    return [
        Piece("", None, "train", file.name, start, stop, 0 if start > span.start or is_known else None, "")
        for start, stop in itertools.pairwise(bounds)
    ]
