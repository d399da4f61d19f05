"""The held-out split of one document: the reference of `held_out_mask`."""

from __future__ import annotations

from pipelines.records.document_split import hash_key


def is_held_out(key: str, share: float) -> bool:
    """Return whether a document is held out."""
    return hash_key(key, "held-out") < share * 2**64
