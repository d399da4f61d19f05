"""Counts and lists the records that a stage drops."""

from __future__ import annotations

from collections import Counter

from pipelines.core.shards import ShardWriter


class Drops:
    """Counts drops by reason; with a writer, also lists each dropped record in it."""

    def __init__(self, writer: ShardWriter | None = None) -> None:
        self._writer = writer
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, id: str, url: str | None = None, detail: str | None = None) -> None:
        """Count one record as dropped for a reason, and list it."""
        self.counts[reason] += 1
        if self._writer is not None:
            self._writer.write({"id": id, "url": url, "reason": reason, "detail": detail})
