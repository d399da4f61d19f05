"""Traces a token of a finished folder back to its document, without writing anything."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipelines import storage
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.model.diagnostics.batch_documents import read_pieces
from pipelines.model.training.data import TOKENS, Span, read_shards_tokenizer, read_token_description
from pipelines.records import inputs
from pipelines.tokenizers.formats import TOKENIZER, load_document_tokenizer, read_tokenizer

Json = Mapping[str, Any]
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
    _verified(folder, name)
    return trace_tokens(folder, description, library, shard, [position])[0]


def trace_tokens(
    folder: inputs.StageFolder, description: Json, library: Tokenizer, shard: Json, positions: Sequence[int]
) -> list[TracedToken]:
    """Return the documents of tokens of a shard, an entry of `tokens.json`, whose checksum is not verified."""
    width, tokens, traced = _CONTEXT_TOKENS, shard["tokens"], []
    spans = [Span(0, max(0, position - width), min(tokens, position + 1 + width)) for position in positions]
    pieces = read_pieces(folder.file(shard["documents_file"]), spans, "", shard["name"])
    for span, position in zip(spans, positions, strict=True):
        piece = next(piece for piece in pieces[span] if piece.start <= position < piece.stop)
        ids: list[int] = read_tokens(folder, description, shard["name"], piece.start, piece.stop).tolist()
        here = position - piece.start
        parts = (ids[:here], [ids[here]], ids[here + 1 :])
        before, text, after = (library.decode(part, skip_special_tokens=False) for part in parts)
        what = (shard["name"], position, ids[here], text, ids[here] == description["end_of_text"])
        traced.append(TracedToken(*what, piece.id, piece.url, piece.document_start + here, before, after))
    return traced


def read_tokens(folder: inputs.StageFolder, description: Json, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Return the tokens `start` to `stop` (exclusive) of a shard, fewer at its end."""
    dtype = np.dtype(description["dtype"]).newbyteorder("<")
    first, size = start * dtype.itemsize, (stop - start) * dtype.itemsize
    return np.frombuffer(storage.read_range(folder.file(name).path, description["header_bytes"] + first, size), dtype)


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
