"""What `webtext pretrain --show-batch` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from webtext_cli.console import printable, say

if TYPE_CHECKING:
    from pipelines.model.diagnostics.batch_documents import BatchBlock, Piece


def print_batch(blocks: Sequence[BatchBlock], step: int, as_json: bool) -> None:
    """Print the blocks of a step, each with its documents and their text, or one JSON object."""
    if as_json:
        say(json.dumps({"step": step, "blocks": [block.to_json() for block in blocks]}, ensure_ascii=False))
        return
    for place, block in enumerate(blocks, 1):
        say(f"step {step:,}, {place:,} of {len(blocks):,}: block {block.number:,}")
        for piece in block.pieces:
            say(f"  {_origin(piece)}")
            if piece.url is not None:
                say(f"  {printable(piece.url)}")
            say(_indented(piece.text))
        say("")


def _origin(piece: Piece) -> str:
    where = f"{piece.file}, tokens {piece.start:,} to {piece.stop - 1:,}"
    if piece.document_start is None:
        return f"{where}: a document that began before"
    name = f"document {printable(piece.id)}" if piece.id else "a document"
    return f"{where}: {name} from its {'beginning' if piece.document_start == 0 else f'token {piece.document_start:,}'}"


def _indented(text: str) -> str:
    """Return the lines of a text, set apart from what is said of it, without what would colour the terminal."""
    # Only at line feeds, since there are characters that Python also breaks lines at and a terminal does not.
    return "\n".join(f"    {printable(line.expandtabs(4))}" for line in text.split("\n"))
