"""The counts of one source file, stored as a work file alongside its submissions."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipelines.stages.scrape.months import DayCounts
from pipelines.stages.scrape.submission import Submission


@dataclasses.dataclass
class FileStats:
    """The funnel of one file.

    `damage` describes what is wrong with it, if anything; `damaged_at` is the offset in its compressed bytes where
    decoding stopped. `sha256` is of the whole file, if it is damaged.
    """

    lines: int = 0
    has_url: bool = False
    has_score: bool = False
    kept: int = 0
    pending: int = 0
    bad_lines: int = 0
    too_many_bad: bool = False
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    damaged_at: int | None = None
    damage: str = ""
    sha256: str = ""
    days: DayCounts = dataclasses.field(default_factory=DayCounts)

    def count(self, submissions: Sequence[Submission]) -> None:
        """Count submissions before any filter is applied."""
        self.lines += len(submissions)
        self.has_url = self.has_url or any(submission.url is not None for submission in submissions)
        self.has_score = self.has_score or any(submission.score is not None for submission in submissions)
        self.days.add(submissions)

    def diagnose(self) -> None:
        """Set `damage` for a dump that could be read to its end, but is not what it seems."""
        if not self.lines:
            self.damage = "contains no lines at all; is the download complete?"
        elif self.bad_lines == self.lines:
            self.damage = (
                f"none of its {self.lines:,} lines is a submission; is it a dump of Reddit submissions, one JSON "
                "object per line? (A list of URLs needs --source urls)"
            )
        elif self.too_many_bad:
            self.damage = (
                f"{self.bad_lines:,} of its {self.lines:,} lines are not submissions (more than 1%); "
                "is it a dump of Reddit submissions, one JSON object per line?"
            )
        else:
            missing = "url" if not self.has_url else "score" if not self.has_score else None
            if missing:
                self.damage = f"none of its {self.lines:,} lines has a usable `{missing}`; is it of submissions?"

    def problem(self, path: str) -> str | None:
        """Return what is wrong with the file, None if it is intact."""
        if self.damaged_at is not None:
            return (
                f"{path}: is truncated or corrupt near compressed byte {self.damaged_at} ({self.damage}); "
                f"{self.lines:,} lines before it were read"
            )
        return f"{path}: {self.damage}" if self.damage else None

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
