"""Traces a token of a finished folder back to its document, without writing anything."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from pipelines.core import inputs, shards, storage
from pipelines.core.errors import ChangedRunError, InputError, UsageError
from pipelines.tokenizers.formats import parse_tokenizer, read_tokenizer

_SHOWN_TOKENS = 24


@dataclasses.dataclass(frozen=True)
class TracedToken:
    """A token of a shard: its document, its place in it, and the text of the tokens around it.

    Positions count from 0: `position` in the shard, `position_in_document` in the document. `before`, `text` and
    `after` are of the same document; `is_end` tells that the token is the one that ends it.
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

    def to_json(self) -> dict[str, Any]:
        """Return the token as JSON values."""
        return dataclasses.asdict(self)


def trace(place: str, tokenizer: str | None = None) -> TracedToken:
    """Return the document of the token at `FILE:POSITION`, where FILE is a shard in a folder of `tokenize`.

    `tokenizer` may name the one that the shards must have been made with. Raises UsageError for a place that is none,
    InputError for a file that is no shard, DamagedShardError for one that is not as written, and ChangedRunError where
    the tokenizer is not the one that the shards name.
    """
    path, position = _parsed(place)
    folder_path, _, name = path.rpartition("/")
    folder = inputs.open_stage(folder_path or ".", ("tokenize",))
    about = storage.read_json(_verified(folder, "tokens.json"))
    described = _shard_of(about, name, path)
    if not 0 <= position < described["tokens"]:
        raise UsageError(f"--trace {place}: {name} has the tokens 0 to {described['tokens'] - 1}")
    library = _tokenizer(folder, about, tokenizer)
    row = _document_at(_verified(folder, described["documents_file"]), position)
    ids = _tokens_around(_verified(folder, name), about, row, position)
    here = position - max(row["offset"], position - _SHOWN_TOKENS)
    return TracedToken(
        shard=name,
        position=position,
        token=ids[here],
        text=_decoded(library, ids[here : here + 1]),
        is_end=ids[here] == about["end_of_text"],
        id=row["id"],
        url=row["url"],
        position_in_document=row["document_offset"] + position - row["offset"],
        before=_decoded(library, ids[:here]),
        after=_decoded(library, ids[here + 1 :]),
    )


def _parsed(place: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+):(\d+)", place, re.DOTALL)
    if not found:
        raise UsageError(f"--trace {place}: is not FILE:POSITION, such as tokenize/train-00000.bin:1234")
    if storage.is_folder(found[1]):
        raise UsageError(f"--trace {place}: {found[1]} is a folder; name one of its shards, such as train-00000.bin")
    return found[1], int(found[2])


def _shard_of(about: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    known = {shard["name"]: shard for split in about["splits"].values() for shard in split}
    if name not in known:
        named = ", ".join([*list(known)[:5], *(["..."] if len(known) > 5 else [])])
        raise InputError(f"{path}: is no token shard of its folder, which has {len(known):,}: {named}")
    if "documents_file" not in known[name]:
        raise InputError(f"{path}: was made by an older version; run `webtext tokenize` again with --overwrite")
    shard: dict[str, Any] = known[name]
    return shard


def _tokenizer(folder: inputs.StageFolder, about: dict[str, Any], asked: str | None) -> Tokenizer:
    """Return the folder's own tokenizer, which must be the one that its shards name, and the one that was asked for."""
    path = _verified(folder, "tokenizer.json")
    data = storage.read_bytes(path)
    named = about["tokenizer_sha256"]
    if hashlib.sha256(data).hexdigest() != named:
        raise InputError(f"{path}: is not the tokenizer that tokens.json names; run `webtext tokenize` again")
    if asked is not None and hashlib.sha256(read_tokenizer(asked)).hexdigest() != named:
        raise ChangedRunError(
            f"{asked}: is not the tokenizer of {folder.path}, whose tokenizer.json has SHA-256 {named}; "
            "leave --tokenizer out to use that one"
        )
    return parse_tokenizer(data, path)


def _document_at(path: str, position: int) -> dict[str, Any]:
    at = pa.scalar(position, pa.int64())
    for batch in shards.read_batches(path):
        ends = pc.add(batch.column("offset"), batch.column("tokens"))
        rows = batch.filter(pc.and_(pc.less_equal(batch.column("offset"), at), pc.greater(ends, at))).to_pylist()
        if rows:
            row: dict[str, Any] = rows[0]
            return row
    raise InputError(f"{path}: lists no document at token {position}; run `webtext tokenize` again with --overwrite")


def _tokens_around(path: str, about: dict[str, Any], row: dict[str, Any], position: int) -> list[int]:
    """Return the ids of the document from some tokens before the position to some after it."""
    dtype = np.dtype(about["dtype"]).newbyteorder("<")
    start = max(row["offset"], position - _SHOWN_TOKENS)
    stop = min(row["offset"] + row["tokens"], position + 1 + _SHOWN_TOKENS)
    with storage.open_read(path) as stream:
        stream.seek(about["header_bytes"] + start * dtype.itemsize)
        ids: list[int] = np.frombuffer(stream.read((stop - start) * dtype.itemsize), dtype).tolist()
    return ids


def _decoded(library: Tokenizer, ids: list[int]) -> str:
    return str(library.decode(ids, skip_special_tokens=False))


def _verified(folder: inputs.StageFolder, name: str) -> str:
    file = folder.file(name)
    file.verify()
    return file.path
