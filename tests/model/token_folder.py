"""Writes folders as tokenize does, with a byte-level BPE tokenizer that is trained on the spot."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.records import shards
from pipelines.stages.tokenize.token_shards import TOKEN_DOCUMENTS_SCHEMA, documents_file

END_OF_TEXT = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class _NoOptions:
    pass


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer with `<|endoftext|>` as its last entry."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """The ids of documents, `<|endoftext|>` after each."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return [id for encoding in tokenizer.encode_batch(list(texts)) for id in (*encoding.ids, end)]


def write_token_folder(
    folder: Path,
    train: Sequence[Sequence[int]],
    held_out: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    dtype: str = "uint16",
    header_bytes: int = 0,
) -> str:
    """Write the shards of both splits, `tokens.json` and `tokenizer.json`, with a manifest of tokenize."""
    data = tokenizer.to_str().encode()

    def write() -> TaskResult:
        files = [shards.write_file(str(folder), "tokenizer.json", data)]
        splits: dict[str, list[dict[str, Any]]] = {}
        for name, rows in (("train", train), ("held-out", held_out)):
            splits[name] = []
            for number, row in enumerate(rows):
                file = shards.shard_name(name, number, "bin")
                body = np.asarray(row, np.dtype(dtype).newbyteorder("<")).tobytes()
                table = documents_file(file)
                with shards.write_shard(str(folder), table, TOKEN_DOCUMENTS_SCHEMA) as written:
                    values = {"id": file, "url": None, "offset": 0, "tokens": len(row), "document_offset": 0}
                    written.write(values)
                files += [shards.write_file(str(folder), file, bytes(header_bytes) + body), written.entry]
                splits[name].append({"name": file, "tokens": len(row), "documents": 1, "documents_file": table})
        about = {
            "format": "llmc" if header_bytes else "raw",
            "dtype": dtype,
            "header_bytes": header_bytes,
            "vocab_size": tokenizer.get_vocab_size(),
            "end_of_text": tokenizer.token_to_id(END_OF_TEXT),
            "tokenizer_sha256": hashlib.sha256(data).hexdigest(),
            "splits": splits,
        }
        files.append(shards.write_file(str(folder), "tokens.json", json.dumps(about).encode()))
        return TaskResult(1, 1, files=tuple(files))

    with stage_run(Stage("tokenize", 1), _NoOptions(), inputs={}, output=str(folder), options=RunOptions()) as run:
        run.once("tokenize", write)
        run.finish()
    return str(folder)
