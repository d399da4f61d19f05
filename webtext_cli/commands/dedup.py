"""`webtext dedup`."""

from __future__ import annotations

from webtext_cli.options import DOCUMENTS_HELP, StageCall, stage_command


@stage_command("dedup", DOCUMENTS_HELP)
def command(call: StageCall) -> None:
    """Remove duplicate and near-duplicate documents.

    Exact duplicates are equal after normalization; near-duplicates share most of their shingles, runs of --ngram words.
    MinHash finds candidate pairs, which are verified by their Jaccard similarity. A document is dropped if a duplicate
    with a higher score or in an earlier corpus (--against) is kept; dropped-*.parquet names it, clusters.parquet lists
    all duplicates, and report.html shows pairs side by side.

    \b
    Examples:
      webtext dedup --corpus my-corpus
      webtext dedup docs.jsonl.zst -o unique --threshold 0.7
      webtext dedup 2018-01.parquet -o new-month --against my-corpus/dedup
    """
    call.run()
