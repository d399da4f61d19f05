"""The options of `webtext tokenize`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class TokenizeConfig(DocumentConfig):
    """The format of the token shards, the order of the documents and the held-out split."""

    shard_tokens: int = option(
        100_000_000,
        "Tokens per shard (the last shard of a split can have fewer). With --format nanogpt: tokens in memory at once.",
        minimum=1,
        maximum=2**40,
    )
    shuffle: bool = option(True, "Shuffle the documents; the order depends only on the documents and --seed.")
    seed: int = option(0, "Random seed of the shuffle.", minimum=0)
    held_out: float = option(
        0.05, "Fraction of documents to hold out, chosen by a hash of their cluster or id.", minimum=0.0, maximum=0.5
    )
    format: str = option(
        "raw",
        "raw: shards of tokens without a header; nanogpt: train.bin, val.bin and meta.pkl; llmc: shards with llm.c's "
        "header of 1,024 bytes; npy: shards as NumPy files.",
        choices=("raw", "nanogpt", "llmc", "npy"),
    )
    engine: str = option(
        "auto",
        "gigatoken (checked against tokenizers on a sample), tokenizers, or auto: gigatoken if it supports the "
        "tokenizer.",
        choices=("auto", "gigatoken", "tokenizers"),
    )
