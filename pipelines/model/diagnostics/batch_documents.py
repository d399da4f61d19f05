"""The contents of a batch: the documents of its blocks, with URLs and text.

The document tables that `tokenize` writes next to its shards map tokens to documents; only the row groups with
documents of the batch are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipelines import storage
from pipelines.errors import InputError, translate_format_errors
from pipelines.model.training.data import Mixture, Span, TokenFolder
from pipelines.model.training.order import Block
from pipelines.records import inputs, shards
from pipelines.tokenizers.formats import load_tokenizer

_COLUMNS = ["id", "url", "offset", "tokens", "document_offset"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """The part of a document in a block: tokens `start` to `stop` (exclusive) of a file, and their text.

    `document_start` is the number of tokens of the document before the piece. A character that is cut by the edge of a
    block or a file is U+FFFD in the text.
    """

    id: str
    url: str | None
    split: str
    file: str
    start: int
    stop: int
    document_start: int
    text: str = ""


@dataclasses.dataclass(frozen=True)
class BatchBlock:
    """A block of a batch: its number in the train split, and its pieces of documents in order.

    `source` names the source of a mixture to which the split belongs.
    """

    number: int
    pieces: tuple[Piece, ...]
    source: str | None = None


def describe_batch(mixture: Mixture, batch: Sequence[Block], context: int) -> list[BatchBlock]:
    """Return the documents of blocks of a mixture; raises what `describe_blocks` raises."""
    described = {
        name: iter(describe_blocks(folder, [block.number for block in batch if block.source == name], context))
        for name, folder in mixture.sources.items()
    }
    return [dataclasses.replace(next(described[name]), source=None if mixture.is_single else name) for name, _ in batch]


def describe_blocks(tokens: TokenFolder, numbers: Sequence[int], context: int) -> list[BatchBlock]:
    """Return the documents of blocks of the train split.

    Each block has `context + 1` tokens; the last one is only predicted, and is the first of the next block. Raises
    DamagedShardError for a document table with a wrong checksum, InputError for an incomplete one.
    """
    split = tokens.train
    spans = [list(split.spans(number * context, (number + 1) * context + 1)) for number in numbers]
    pieces_of: dict[Span, list[Piece]] = {}
    for index, (name, table) in enumerate(split.tables.items()):
        in_shard = {span for block_spans in spans for span in block_spans if span.shard == index}
        if in_shard:
            pieces_of |= read_pieces(table, sorted(in_shard, key=lambda span: span.start), "train", name)
    tokenizer = load_tokenizer(tokens.tokenizer, storage.join(tokens.path, "tokenizer.json"))
    blocks = []
    for number, row, block_spans in zip(numbers, split.read_blocks(numbers, context), spans, strict=True):
        pieces = [piece for span in block_spans for piece in pieces_of[span]]
        ends = np.cumsum([piece.stop - piece.start for piece in pieces])
        # Special tokens are part of what the model reads, so `<|endoftext|>` is shown.
        texts = tokenizer.decode_batch([ids.tolist() for ids in np.split(row, ends[:-1])], skip_special_tokens=False)
        with_texts = [dataclasses.replace(piece, text=text) for piece, text in zip(pieces, texts, strict=True)]
        blocks.append(BatchBlock(number, tuple(with_texts)))
    return blocks


def read_pieces(table: inputs.InputFile, spans: Sequence[Span], split: str, file: str) -> dict[Span, list[Piece]]:
    """Return the pieces of spans of a file, without text, from the table of its documents.

    Raises DamagedShardError for a wrong checksum, InputError for a table that does not cover the spans.
    """
    table.verify()
    pieces: dict[Span, list[Piece]] = {span: [] for span in spans}
    starts, stops = _bounds(spans)
    for batch in shards.read_batches(table.path, _COLUMNS, _row_groups(table.path, spans)):
        offsets = batch.column("offset").to_numpy()
        firsts = np.searchsorted(offsets + batch.column("tokens").to_numpy(), starts, side="right")
        lasts = np.searchsorted(offsets, stops, side="left")
        for index in np.flatnonzero(firsts < lasts).tolist():
            span = spans[index]
            for row in batch.slice(firsts[index], lasts[index] - firsts[index]).to_pylist():
                start, stop = max(span.start, row["offset"]), min(span.stop, row["offset"] + row["tokens"])
                document_start = row["document_offset"] + start - row["offset"]
                pieces[span].append(Piece(row["id"], row["url"], split, file, start, stop, document_start))
    for span in spans:
        if sum(piece.stop - piece.start for piece in pieces[span]) != span.stop - span.start:
            raise InputError(
                f"{table.path}: does not cover the tokens {span.start:,} to {span.stop:,} of its shard; "
                "delete the folder and re-run `webtext tokenize`"
            )
    return pieces


def _row_groups(path: str, spans: Sequence[Span]) -> list[int]:
    """Return the row groups with documents of the spans: each covers the tokens up to the first of the next one."""
    with shards.open_stream(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        shards.require_columns(path, metadata.schema.names, _COLUMNS)
        groups = range(metadata.num_row_groups)
        offsets = [shards.column_chunks(stream, path, metadata, group, ["offset"])[0] for group in groups]
    with translate_format_errors(path, "a table of documents; re-run `webtext tokenize` with --overwrite"):
        first_tokens = [int(chunk.statistics.min) for chunk in offsets]
    starts, stops = _bounds(spans)
    firsts = np.maximum(np.searchsorted(first_tokens, starts, side="right") - 1, 0)
    ends = np.searchsorted(first_tokens, stops, side="left")
    return sorted({group for first, end in zip(firsts, ends, strict=True) for group in range(first, end)})


def _bounds(spans: Sequence[Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.array([span.start for span in spans]), np.array([span.stop for span in spans])
