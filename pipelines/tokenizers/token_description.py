"""`tokens.json`, which describes the shards in a folder of tokenize."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from pipelines import storage
from pipelines.engine.manifest import Count
from pipelines.errors import InputError, translate_format_errors
from pipelines.records.inputs import StageFolder
from pipelines.tokenizers.formats import TOKENIZER

TOKENS = "tokens.json"


class _Shard(TypedDict):
    name: str
    tokens: Count
    documents_file: NotRequired[str | None]


class _Description(TypedDict):
    dtype: Literal["uint16", "uint32"]
    header_bytes: Count
    vocab_size: Count
    end_of_text: Count
    tokenizer_sha256: str
    splits: dict[str, list[_Shard]]


def read_token_description(folder: StageFolder) -> dict[str, Any]:
    """Read the description of token shards; raise InputError, which names the field, if it is not one."""
    path = folder.file(TOKENS).path
    with translate_format_errors(path, "a description of token shards; re-run `webtext tokenize` to rebuild it"):
        description: dict[str, Any] = storage.read_json(path)
        msgspec.convert(description, _Description)
        return description


def read_shards_tokenizer(folder: StageFolder, description: Mapping[str, Any]) -> bytes:
    """Read the tokenizer of token shards; raise InputError if it is not the one that their description names."""
    path = folder.file(TOKENIZER).path
    data = storage.read_bytes(path)
    if hashlib.sha256(data).hexdigest() != description["tokenizer_sha256"]:
        raise InputError(
            f"{path}: not the tokenizer that the shards were encoded with ({TOKENS} has a different SHA-256); "
            f"delete {folder.path} and re-run `webtext tokenize`"
        )
    return data
