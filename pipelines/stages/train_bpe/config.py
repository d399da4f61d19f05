"""The options of `webtext train-bpe`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class TrainBpeConfig(DocumentConfig):
    """What the tokenizer is trained on, and its size."""

    vocab_size: int = option(
        50257, "Vocabulary size: 256 bytes, the merges, and <|endoftext|>.", minimum=258, maximum=2**31 - 1
    )
    min_frequency: int = option(2, "Minimum number of occurrences of a pair to be merged.", minimum=1)
    min_word_count: int = option(
        1, "Ignore words that occur fewer times; above 1 saves memory but is not exact.", minimum=1
    )
    sample_bytes: int | None = option(
        None,
        "Count the words of a sample of the documents, chosen by hash, of at most this many bytes.",
        minimum=1,
        example=10_000_000_000,
    )
    held_out: float = option(
        0.05,
        "Fraction of documents whose words are counted separately: the documents that `webtext tokenize` holds out.",
        minimum=0.0,
        maximum=0.5,
    )
    train_on: str = option(
        "all", "all: every document; kept: only those that are not held out.", choices=("all", "kept")
    )
    engine: str = option(
        "webtext",
        "webtext: trainer that works on word counts; tokenizers: Hugging Face's, which finds the same merges.",
        choices=("webtext", "tokenizers"),
    )
    count_only: bool = option(False, "Stop after counting words; train later with --counts.")
    rare: int = option(100, "The report lists entries that occur fewer times as rare.", minimum=1)

    @property
    def needs_files(self) -> bool:
        """Whether it requires document files: counts can replace them."""
        return False
