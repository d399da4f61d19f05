"""Random token shards for benchmarks of training, whose speed does not depend on the text."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.records import shards
from pipelines.stages.tokenize.token_shards import TOKEN_DOCUMENTS_SCHEMA, documents_file

END_OF_TEXT = "<|endoftext|>"


@dataclasses.dataclass(frozen=True)
class _NoOptions:
    pass


def write_tokens(folder: str, train: int, held_out: int, vocab_size: int) -> str:
    """Write a folder of `webtext tokenize` with this many tokens per split; return its path."""
    with stage_run(Stage("tokenize", 1), _NoOptions(), inputs={}, output=folder, options=RunOptions()) as run:
        run.once("tokenize", lambda: _write(folder, {"train": train, "held-out": held_out}, vocab_size))
        run.finish()
    return folder


def random_tokens(count: int, vocab_size: int, seed: int) -> npt.NDArray[np.uint16]:
    """Return ids with a Zipf-like distribution: the n-th is about n times rarer than the first."""
    uniform = np.random.default_rng(seed).random(count)
    ids: npt.NDArray[np.uint16] = (np.exp(uniform * np.log(vocab_size)) - 1).astype(np.uint16)
    return np.minimum(ids, vocab_size - 1)


def _write(folder: str, splits: dict[str, int], vocab_size: int) -> TaskResult:
    tokenizer = _tokenizer(vocab_size)
    files = [shards.write_file(folder, "tokenizer.json", tokenizer)]
    listed = {}
    for seed, (split, count) in enumerate(splits.items()):
        file, table = _write_shard(folder, split, random_tokens(count, vocab_size, seed))
        files += [file, table]
        listed[split] = [{"name": file.name, "tokens": count, "documents": 1, "documents_file": table.name}]
    description = {
        "format": "raw",
        "dtype": "uint16",
        "header_bytes": 0,
        "vocab_size": vocab_size,
        "end_of_text": vocab_size - 1,
        "tokenizer_sha256": hashlib.sha256(tokenizer).hexdigest(),
        "splits": listed,
    }
    files.append(shards.write_file(folder, "tokens.json", json.dumps(description).encode()))
    return TaskResult(1, 1, files=tuple(files))


def _write_shard(folder: str, split: str, tokens: npt.NDArray[np.uint16]) -> tuple[FileEntry, FileEntry]:
    """Write a shard of one document, and the table of its documents."""
    file = shards.write_file(folder, shards.shard_name(split, 0, "bin"), tokens.astype("<u2").tobytes())
    row = {"id": split, "url": None, "offset": 0, "tokens": len(tokens), "document_offset": 0}
    with shards.write_shard(folder, documents_file(file.name), TOKEN_DOCUMENTS_SCHEMA) as table:
        table.write(row)
    return file, table.entry


def _tokenizer(vocab_size: int) -> bytes:
    """Return a byte-level tokenizer without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = (alphabet + [f"entry{number}" for number in range(vocab_size)])[: vocab_size - 1]
    tokenizer = Tokenizer(models.BPE(vocab={text: id for id, text in enumerate(entries)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return str(tokenizer.to_str()).encode()
