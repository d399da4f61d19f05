"""Tokenizers in every form in which people have them, read as one: the bytes of a `tokenizer.json`."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipelines.core import inputs, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import has_manifest

END_OF_TEXT = "<|endoftext|>"
_VOCABULARIES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


def read_tokenizer(path: str) -> bytes:
    """Return the bytes of a `tokenizer.json` for what is at a path.

    The path is the folder that train-bpe wrote (checked against its manifest), a folder with a `tokenizer.json`, with
    `encoder.json` and `vocab.bpe` (as OpenAI published GPT-2's) or with `vocab.json` and `merges.txt`, or a
    `tokenizer.json` itself. Raises InputError where there is none of these.
    """
    if not storage.is_folder(path):
        if storage.exists(path):
            return storage.read_bytes(path)
        raise InputError(f"{path}: no tokenizer is here; run `webtext train-bpe` first, or name one with --tokenizer")
    names = storage.list_folder(path)
    if has_manifest(path) or "_journal" in names:
        file = inputs.open_stage(path, ("train-bpe",)).file("tokenizer.json")
        file.verify()
        return storage.read_bytes(file.path)
    if "tokenizer.json" in names:
        return storage.read_bytes(storage.join(path, "tokenizer.json"))
    for vocabulary, merges in _VOCABULARIES:
        if vocabulary in names and merges in names:
            return _from_vocabulary(storage.join(path, vocabulary), storage.join(path, merges))
    raise InputError(
        f"{path}: holds no tokenizer: neither tokenizer.json, nor encoder.json and vocab.bpe, "
        "nor vocab.json and merges.txt"
    )


def parse_tokenizer(data: bytes, source: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`; `<|endoftext|>` in a text is text to it, never the token.

    Truncation and padding that the file asks for are turned off. Raises InputError, naming `source`, where it is none,
    lacks `<|endoftext|>`, or would give other ids each time.
    """
    try:
        settings = json.loads(data)
        for token in settings["added_tokens"]:
            # Only special tokens can be kept from being recognised in a text.
            token["special"] = token["special"] or token["content"] == END_OF_TEXT
        tokenizer = Tokenizer.from_str(json.dumps(settings))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{source}: is not a tokenizer of the tokenizers library ({error})") from error
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise InputError(f"{source}: has no {END_OF_TEXT} in its vocabulary, and documents are divided by it")
    if settings["model"].get("dropout"):
        raise InputError(f"{source}: has BPE dropout, so each run would give other tokens; set its dropout to null")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    if end_of_text_id(tokenizer) in tokenizer.encode(f"a{END_OF_TEXT}b", add_special_tokens=False).ids:
        raise InputError(f"{source}: turns the text {END_OF_TEXT} into the token that divides documents")
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of `<|endoftext|>` in a tokenizer that has it."""
    id = tokenizer.token_to_id(END_OF_TEXT)
    assert id is not None
    return id


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of ids, those that no token uses included."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _from_vocabulary(vocabulary_path: str, merges_path: str) -> bytes:
    vocabulary: Any = storage.read_json(vocabulary_path)
    lines = storage.read_bytes(merges_path).decode().split("\n")
    pairs = (line.split(" ", 1) for line in lines if line.strip() and not line.startswith("#version"))
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, [(left, right) for left, right in pairs]))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{merges_path}: does not fit {storage.basename(vocabulary_path)} ({error})") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if END_OF_TEXT in vocabulary:
        tokenizer.add_special_tokens([END_OF_TEXT])
    return (tokenizer.to_str(pretty=True) + "\n").encode()
