"""The options of `webtext train-bpe`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class TrainBpeConfig(DocumentConfig):
    """What the tokenizer is trained on, and its size."""

    # Counts can replace documents.
    needs_files = False
    # The trainer of `tokenizers`, which gives the same merges, was an option.
    former_options = (("engine", "webtext"),)

    vocab_size: int = option(
        50257, "Vocabulary size: 256 bytes, the merges, and <|endoftext|>.", minimum=258, maximum=2**31 - 1
    )
    min_frequency: int = option(2, "Minimum count of a pair for it to be merged.", minimum=1)
    min_word_count: int = option(
        1, "Ignore words with a lower count; values above 1 save memory, but the merges are not exact.", minimum=1
    )
    sample_bytes: int | None = option(
        None,
        "Train on a sample of at most this many bytes, chosen by a hash of the documents.",
        minimum=1,
        example=10_000_000_000,
    )
    held_out: float = option(
        0.05, "Held-out fraction; use the same value for `webtext tokenize`.", minimum=0.0, maximum=0.5
    )
    train_on: str = option(
        "all", "all: every document; kept: only documents that are not held out.", choices=("all", "kept")
    )
    count_only: bool = option(False, "Stop after counting words; train later with --counts.")
    rare: int = option(100, "Report entries with a lower count as rare.", minimum=1)
