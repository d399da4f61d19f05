"""Traces a token of a finished folder back to its document, without writing anything."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipelines import storage
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.model.diagnostics.batch_documents import read_pieces
from pipelines.model.training.data import TOKENS, Span, read_shards_tokenizer, read_token_description
from pipelines.records import inputs
from pipelines.tokenizers.formats import TOKENIZER, load_document_tokenizer, read_tokenizer

_CONTEXT_TOKENS = 24


@dataclasses.dataclass(frozen=True)
class TracedToken:
    """A token of a shard: its document, its position in it, and the text around it.

    Positions start at 0: `position` in the shard, `position_in_document` in the document. `before`, `text` and `after`
    are from the same document; `is_end` marks the `<|endoftext|>` after it.
    """

    shard: str
    position: int
    token: int
    text: str
    is_end: bool
    id: str
    url: str | None
    position_in_document: int
    before: str
    after: str


def trace(location: str, tokenizer: str | None = None) -> TracedToken:
    """Return the document of the token at `FILE:POSITION`, where FILE is a shard in a folder of `tokenize`.

    `tokenizer` optionally names the tokenizer that the shards must have been made with. Raises UsageError for an
    invalid location, InputError for a file that is not a shard, DamagedShardError if its checksum differs, and
    ChangedRunError if the shards were made with another tokenizer.
    """
    path, position = _parse_location(location)
    folder_path, _, name = path.rpartition("/")
    if not folder_path and not storage.exists(path):
        raise InputError(f"{path}: no such file; name the path of the shard, such as CORPUS/tokenize/train-00000.bin")
    folder = inputs.open_stage(folder_path or ".", ("tokenize",))
    _verified(folder, TOKENS)
    description = read_token_description(folder)
    shard = _shard_of(description, name, path)
    if not 0 <= position < shard["tokens"]:
        raise UsageError(f"--trace {location}: {name} has tokens 0 to {shard['tokens'] - 1}")
    library = _load_tokenizer(folder, description, tokenizer)
    span = Span(0, max(0, position - _CONTEXT_TOKENS), min(shard["tokens"], position + 1 + _CONTEXT_TOKENS))
    pieces = read_pieces(folder.file(shard["documents_file"]), [span], "", name)[span]
    piece = next(piece for piece in pieces if piece.start <= position < piece.stop)
    dtype = np.dtype(description["dtype"]).newbyteorder("<")
    first, size = (tokens * dtype.itemsize for tokens in (piece.start, piece.stop - piece.start))
    data = storage.read_range(_verified(folder, name), description["header_bytes"] + first, size)
    ids: list[int] = np.frombuffer(data, dtype).tolist()
    here = position - piece.start
    texts = [library.decode(part, skip_special_tokens=False) for part in (ids[:here], [ids[here]], ids[here + 1 :])]
    return TracedToken(
        shard=name,
        position=position,
        token=ids[here],
        text=texts[1],
        is_end=ids[here] == description["end_of_text"],
        id=piece.id,
        url=piece.url,
        position_in_document=piece.document_start + here,
        before=texts[0],
        after=texts[2],
    )


def _parse_location(location: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+):(\d+)", location, re.DOTALL)
    if not match:
        raise UsageError(f"--trace {location}: expected FILE:POSITION, such as tokenize/train-00000.bin:1234")
    if storage.is_folder(match[1]):
        raise UsageError(f"--trace {location}: {match[1]} is a folder; name one of its shards, such as train-00000.bin")
    return match[1], int(match[2])


def _shard_of(description: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {
        shard["name"]: shard for split in description["splits"].values() for shard in split
    }
    if name not in known:
        names = ", ".join([*list(known)[:5], *(["..."] if len(known) > 5 else [])])
        raise InputError(f"{path}: is not a token shard of its folder, which has {len(known):,}: {names}")
    return known[name]


def _load_tokenizer(folder: inputs.StageFolder, description: dict[str, Any], expected: str | None) -> Tokenizer:
    """Return the folder's tokenizer, after checking it against `tokens.json` and the tokenizer that is `expected`."""
    path = _verified(folder, TOKENIZER)
    data = read_shards_tokenizer(folder, description)
    sha256 = description["tokenizer_sha256"]
    if expected is not None and hashlib.sha256(read_tokenizer(expected)).hexdigest() != sha256:
        raise ChangedRunError(
            f"{expected}: is not the tokenizer of {folder.path}, whose {TOKENIZER} has SHA-256 {sha256}; "
            "omit --tokenizer to use that one"
        )
    return load_document_tokenizer(data, path)


def _verified(folder: inputs.StageFolder, name: str) -> str:
    file = folder.file(name)
    file.verify()
    return file.path
