"""The options of `webtext dedup`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class DedupConfig(DocumentConfig):
    """When two documents count as near-duplicates, and how candidate pairs are found."""

    threshold: float = option(
        0.8,
        "Minimum Jaccard similarity of near-duplicates, by their shingles; a lower value removes more documents.",
        minimum=0.1,
        maximum=1,
    )
    ngram: int = option(5, "Words per shingle; shorter shingles make documents more similar.", minimum=1, maximum=100)
    num_perm: int = option(
        128,
        "MinHash values per document; more values miss fewer near-duplicates but take longer.",
        minimum=16,
        maximum=1024,
    )
    minhash_seed: int = option(
        1, "Random seed of the MinHash permutations; 1 as in datasketch.", minimum=0, maximum=2**32 - 1
    )
    paragraphs: int | None = option(
        None,
        "Remove paragraphs (lines) that occur in more than this many documents, wherever they occur, before documents "
        "are compared. By default they stay.",
        minimum=1,
        example=100,
    )
    min_paragraph_words: int = option(
        8, "Minimum words of a paragraph that is removed; shorter lines stay.", minimum=1, only_with="paragraphs"
    )
    against: tuple[str, ...] = option(
        (),
        "Earlier corpus whose documents are dropped from this one: the folder of a stage, or documents. A folder of "
        "`webtext dedup --write-signatures` is compared without reading its texts again.",
        identity=False,
    )
    write_signatures: bool = option(
        False, "Write the MinHash signatures of the kept documents, for datasketch and for a later --against."
    )
