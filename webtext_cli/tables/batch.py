"""Output of `webtext pretrain --show-batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.format import escape_unprintable, to_json
from webtext_cli.console import say

if TYPE_CHECKING:
    from pipelines.model.diagnostics.batch_documents import BatchBlock, Piece


def print_batch(blocks: Sequence[BatchBlock], step: int, as_json: bool) -> None:
    """Print the blocks of a step with the text of their documents, or one JSON object."""
    if as_json:
        say(to_json({"step": step, "blocks": list(blocks)}))
        return
    for index, block in enumerate(blocks, 1):
        say(f"step {step:,}, {index:,} of {len(blocks):,}: block {block.number:,}")
        for piece in block.pieces:
            say(f"  {_describe_origin(piece)}")
            if piece.url is not None:
                say(f"  {escape_unprintable(piece.url)}")
            # Only line feeds end a line: Python splits at more characters than a terminal does.
            for line in piece.text.split("\n"):
                say(f"    {escape_unprintable(line.expandtabs(4))}")
        say("")


def _describe_origin(piece: Piece) -> str:
    tokens = f"{piece.file}, tokens {piece.start:,} to {piece.stop - 1:,}"
    if piece.document_start is None:
        return f"{tokens}: a document that starts earlier"
    document = f"document {escape_unprintable(piece.id)}" if piece.id else "a document"
    start = "its beginning" if piece.document_start == 0 else f"its token {piece.document_start:,}"
    return f"{tokens}: {document} from {start}"
