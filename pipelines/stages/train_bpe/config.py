"""The options of `webtext train-bpe`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class TrainBpeConfig:
    """What the tokenizer is to be."""

    vocab_size: int = option(
        50257, "Entries of the vocabulary: 256 bytes, the merges, and <|endoftext|>.", minimum=258, maximum=2**31 - 1
    )
    min_frequency: int = option(2, "Merge no pair that occurs fewer times than this.", minimum=1)
    text_field: str = option("text", "The column or field that holds the text.")
