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
    min_word_count: int = option(
        1, "Leave out words that occur fewer times than this; above 1 saves memory, but is not exact.", minimum=1
    )
    max_bytes: int | None = option(
        None,
        "Count the words of a sample of the documents, chosen by hash, of at most so many bytes.",
        minimum=1,
        example=10_000_000_000,
    )
    held_out: float = option(
        0.05,
        "The share of documents whose words are counted apart: the same that `webtext tokenize` holds out.",
        minimum=0.0,
        maximum=0.5,
    )
    train_on: str = option(
        "all", "all: every document; kept: without those that are held out.", choices=("all", "kept")
    )
    engine: str = option(
        "webtext",
        "webtext: from counts of words, by our own trainer; tokenizers: by Hugging Face's, for the same merges.",
        choices=("webtext", "tokenizers"),
    )
    count_only: bool = option(False, "Stop when the words are counted; train later with --counts.")
    rare: int = option(
        100, "Entries that occur fewer times than this are listed on the report card as seldom seen.", minimum=1
    )
    text_field: str = option("text", "The column or field that holds the text.")
    group_field: str = option("domain", "The column or field by which the report card groups documents.")

    @property
    def needs_files(self) -> bool:
        """Whether it cannot do without files: counts only stand for documents."""
        return False
