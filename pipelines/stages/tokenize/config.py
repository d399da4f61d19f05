"""The options of `webtext tokenize`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class TokenizeConfig:
    """What the token shards are to be."""

    shard_tokens: int = option(
        100_000_000, "The tokens of each shard; the last of a split has what is left.", minimum=1, maximum=2**40
    )
    shuffle: bool = option(True, "Put the documents in a random order, which depends on them and the seed alone.")
    seed: int = option(0, "Chooses the order of the documents.", minimum=0)
    held_out: float = option(
        0.05, "The share of documents held out, chosen by a hash of their cluster or id.", minimum=0.0, maximum=0.5
    )
    format: str = option(
        "nanogpt",
        "nanogpt: tokens alone; llmc: behind llm.c's header of 1,024 bytes; npy: NumPy files.",
        choices=("nanogpt", "llmc", "npy"),
    )
    engine: str = option(
        "auto",
        "gigatoken (held to tokenizers on a sample), tokenizers, or auto: gigatoken where it can.",
        choices=("auto", "gigatoken", "tokenizers"),
    )
    text_field: str = option("text", "The column or field that holds the text.")
