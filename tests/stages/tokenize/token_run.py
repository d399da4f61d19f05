"""Runs `tokenize` on a few documents, and reads its folders as its users do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipelines.engine.run import RunOptions, Summary
from pipelines.progress import Silent
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize

END = "<|endoftext|>"


class Notes(Silent):
    """Records the notes that a user would see."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def write_tokenizer(path: Path, **changed: Any) -> Path:
    """Write a byte-level tokenizer of 256 bytes, one merge and the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: id for id, character in enumerate([*alphabet, "th", END])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    path.write_text(json.dumps({**json.loads(tokenizer.to_str()), **changed}))
    return path


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def run(documents: Path, tokenizer: Path, output: Path, options: RunOptions | None = None, **config: Any) -> Summary:
    return tokenize(
        TokenizeConfig(**config),
        documents=str(documents),
        tokenizer=str(tokenizer),
        output=str(output),
        options=options or RunOptions(),
    )


def described(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / "tokens.json").read_text())
    return description


def stream(folder: Path, split: str) -> list[int]:
    """Return all tokens of a split, one shard after the other."""
    description = described(folder)
    return [
        id
        for file in description["splits"][split]
        for id in np.fromfile(folder / file["name"], description["dtype"], offset=description["header_bytes"]).tolist()
    ]


def pieces(folder: Path, split: str) -> list[list[dict[str, Any]]]:
    """The tables of documents of a split's shards."""
    return [pq.read_table(folder / file["documents_file"]).to_pylist() for file in described(folder)["splits"][split]]


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """The token shards and their tables, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith(("train-", "held-out-"))}
