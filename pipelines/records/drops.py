"""What a task that reads records reports: which it dropped, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.engine.manifest import FileEntry
from pipelines.engine.stage import TaskResult
from pipelines.format import plural


class Drops:
    """Counts drops by reason; with `write`, also lists each dropped record by it."""

    def __init__(self, write: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._write = write
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, id: str, url: str | None = None, detail: str | None = None) -> None:
        """Count one record as dropped for a reason, and list it."""
        self.counts[reason] += 1
        if self._write is not None:
            self._write({"id": id, "url": url, "reason": reason, "detail": detail})

    def describe_bad_records(self) -> str | None:
        """Return how many records of the input are not documents, and why; None if all are."""
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.counts.items()))
        records = plural(self.counts.total(), "record of the input is", "records of the input are")
        return f"{records} not a document ({reasons})" if reasons else None

    def task_result(
        self, kept: int, files: tuple[FileEntry, ...], counts: Mapping[str, float] | None = None
    ) -> TaskResult:
        """Return the result of a task that kept this many records and dropped all others that it read."""
        return TaskResult(self.counts.total() + kept, kept, self.counts, counts or {}, files)
