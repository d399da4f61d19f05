"""The files of a tokenizer folder: one tokenizer in the format of each library."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from pipelines import storage
from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.errors import WebtextError
from pipelines.tokenizers.formats import (
    END_OF_TEXT,
    TOKENIZER,
    load_document_tokenizer,
    token_characters,
    tokenizer_json,
)

FILES = (
    TOKENIZER, "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "ranks.tiktoken", "tokenizer_config.json",
)  # fmt: skip

# What `transformers` reads from a tokenizer folder in addition to tokenizer.json, as in GPT-2's own.
_TRANSFORMERS_CONFIG = {
    "tokenizer_class": "GPT2Tokenizer",
    "model_max_length": 1024,
    "add_prefix_space": False,
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
    "unk_token": END_OF_TEXT,
}
_MERGES_HEADER = "#version: 0.2"
_BUG = "this is a bug in webtext, please report it"


def token_bytes_of(merges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each entry: the 256 bytes in GPT-2's order, then the result of each merge of two ids."""
    tokens = [bytes([byte]) for byte in byte_characters()]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    return tokens


def tokenizer_files(merges: Sequence[tuple[int, int]]) -> dict[str, bytes]:
    """Return the bytes of each file by name; `<|endoftext|>` is the last entry.

    Raises WebtextError if two merges create the same entry.
    """
    tokens = token_bytes_of(merges)
    entries = [token_characters(token) for token in tokens]
    vocabulary = {entry: id for id, entry in enumerate([*entries, END_OF_TEXT])}
    if len(vocabulary) != len(tokens) + 1:
        raise WebtextError(f"train-bpe: two merges create one entry; {_BUG}")
    pairs = [(entries[left], entries[right]) for left, right in merges]
    lines = "\n".join([_MERGES_HEADER, *(f"{left} {right}" for left, right in pairs), ""]).encode()
    return {
        TOKENIZER: tokenizer_json(vocabulary, pairs),
        "vocab.json": (json.dumps(vocabulary, ensure_ascii=False) + "\n").encode(),
        "merges.txt": lines,
        "encoder.json": json.dumps(vocabulary).encode(),
        "vocab.bpe": lines,
        "ranks.tiktoken": b"".join(b"%b %d\n" % (base64.b64encode(token), id) for id, token in enumerate(tokens)),
        "tokenizer_config.json": (json.dumps(_TRANSFORMERS_CONFIG, indent=1) + "\n").encode(),
    }


def check_written(folder: str, texts: Sequence[str]) -> None:
    """Raise WebtextError unless the written tokenizer decodes the ids of these texts to the texts."""
    path = storage.join(folder, TOKENIZER)
    tokenizer = load_document_tokenizer(storage.read_bytes(path), path)
    for encoding, text in zip(tokenizer.encode_batch_fast(list(texts), add_special_tokens=False), texts, strict=True):
        if tokenizer.decode(encoding.ids, skip_special_tokens=False) != text:
            raise WebtextError(f"{path}: does not decode the ids of {text[:60]!r} to this text; {_BUG}")
