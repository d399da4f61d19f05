"""What one source file held and what became of it, kept as a work file beside its submissions."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

from pipelines.core.errors import InputError
from pipelines.stages.scrape.months import DayCounts


@dataclasses.dataclass
class FileStats:
    """The funnel of one file. `damaged_at` is the offset in its compressed bytes, None where it is sound."""

    lines: int = 0
    with_url: int = 0
    with_score: int = 0
    kept: int = 0
    pending: int = 0
    bad_lines: int = 0
    too_many_bad: bool = False
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    damaged_at: int | None = None
    damage: str = ""
    days: DayCounts = dataclasses.field(default_factory=DayCounts)

    def check_fields(self, path: str) -> None:
        """Raise InputError where a dump has no line at all, or none with a URL or with a score."""
        if not self.lines:
            raise InputError(f"{path}: holds no lines at all; is the download complete?")
        if self.too_many_bad:
            return
        for name, usable in (("url", self.with_url), ("score", self.with_score)):
            if not usable:
                raise InputError(f"{path}: none of its {self.lines} lines has a usable `{name}`; is it of submissions?")

    def problem(self, path: str) -> str | None:
        """Say what is wrong with the file, None where it is sound."""
        if self.damaged_at is not None:
            return (
                f"{path}: is truncated or corrupt near compressed byte {self.damaged_at} ({self.damage}); "
                f"{self.lines} lines before it could be read"
            )
        if self.too_many_bad:
            return (
                f"{path}: {self.bad_lines} of its {self.lines} lines are no submissions (more than 1%); "
                "is it a dump of Reddit submissions, one JSON object a line?"
            )
        return None

    def to_json(self) -> bytes:
        """Return the stats as JSON."""
        fields: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"dropped": dict(sorted(self.dropped.items())), "days": self.days.to_json()}
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, data: bytes) -> FileStats:
        """Read stats from JSON."""
        fields = json.loads(data)
        return cls(**fields | {"dropped": Counter(fields["dropped"]), "days": DayCounts.from_json(fields["days"])})
