"""What the tasks of a fetch share, and what they know of the links of a shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipelines.core import storage
from pipelines.core.journal import WORK
from pipelines.core.manifest import FileEntry
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.known import KNOWN_SCHEMA, carry_over, known_file
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.segments import latest_outcomes, open_segments


@dataclasses.dataclass(frozen=True)
class FetchContext:
    """What the tasks share; the phase `known` found what the `earlier` result knows.

    `warcs` are its WARC files, by the shard that takes them over.
    """

    config: FetchConfig
    output: str
    earlier: str | None = None
    known: str = ""
    warcs: Mapping[int, Sequence[FileEntry]] = dataclasses.field(default_factory=dict)

    def segments_folder(self, shard: LinkShard) -> str:
        """Return the folder of the segments of a shard."""
        return storage.join(self.output, WORK, shard.name)

    def known_rows(self, shard: LinkShard, links: Sequence[str]) -> pa.Table:
        """Return the outcomes that the earlier result has for the links of a shard."""
        if not self.earlier:
            return KNOWN_SCHEMA.empty_table()
        return carry_over(storage.join(self.output, known_file(shard, self.known)), links)

    def latest(self, shard: LinkShard, links: Sequence[str]) -> pa.Table:
        """Return the latest outcome of each link of a shard that has one, in order of the links."""
        tables = [segment.outcomes for segment in open_segments(self.segments_folder(shard))]
        return latest_outcomes([self.known_rows(shard, links), *tables])
