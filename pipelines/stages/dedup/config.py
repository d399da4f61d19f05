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
        "Minimum Jaccard similarity of the shingles of near-duplicates; lower values drop more documents.",
        minimum=0.1,
        maximum=1,
    )
    ngram: int = option(5, "Words per shingle; shorter shingles find more duplicates.", minimum=1, maximum=100)
    num_perm: int = option(
        128, "MinHash values per document; higher values improve recall but are slower.", minimum=16, maximum=1024
    )
    minhash_seed: int = option(
        1, "Random seed of the MinHash permutations; 1 as in datasketch.", minimum=0, maximum=2**32 - 1
    )
    paragraphs: int | None = option(
        None,
        "Remove paragraphs (lines) that occur in more than this many documents, wherever they occur, before documents "
        "are compared. By default, paragraphs are kept.",
        minimum=1,
        example=100,
    )
    min_paragraph_words: int = option(
        8, "Minimum words of a removed paragraph; shorter ones are kept.", minimum=1, only_with="paragraphs"
    )
    against: tuple[str, ...] = option(
        (),
        "Drop documents that duplicate one of an earlier corpus: a stage's folder, or document files. A folder of "
        "`webtext dedup --write-signatures` is compared without reading its texts again.",
        identity=False,
    )
    write_signatures: bool = option(
        False, "Write the MinHash signatures of the kept documents, for datasketch and a later --against."
    )
