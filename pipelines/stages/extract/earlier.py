"""What an earlier result knows about the pages of a shard: their documents and drops, in the order of the pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.manifest import require_files
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.stages.extract.sources import FetchedShard, Row, Source

# A document's fields that come from its link. Its title may, too: if the link has changed, the page is extracted again.
_OF_LINK = ("score", "submission_ids", "subreddits", "created_utc")


class EarlierShard:
    """The documents and drops of a shard; `take` them in the order of the pages."""

    def __init__(
        self, folder: StageFolder, index: int, columns: Sequence[str] | None = None, *, verify: bool = True
    ) -> None:
        self.report_path = storage.join(folder.path, shards.shard_name("report", index, "json"))
        paths = [folder.file(shards.shard_name(noun, index)) for noun in ("documents", "dropped")]
        if verify:
            require_files(folder.path, [file.entry for file in paths if file.entry], "extract")
        self._rows = [_Ahead(shards.read_rows(paths[0].path, [*columns] if columns else None))]
        self._rows.append(_Ahead(shards.read_rows(paths[1].path)))

    @property
    def has_documents(self) -> bool:
        """Whether documents are left to take."""
        return self._rows[0].row is not None

    def take(self, url: str) -> Row | None:
        """Return the document, or the drop, of the next page if it has this URL."""
        return next((rows.take() for rows in self._rows if rows.row and rows.row["url"] == url), None)

    @property
    def is_exhausted(self) -> bool:
        """Whether all have been taken."""
        return not any(rows.row for rows in self._rows)


class _Ahead:
    """An iterator that shows its next row."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self.row = next(rows, None)

    def take(self) -> Row | None:
        row, self.row = self.row, next(self._rows, None)
        return row


def contain_earlier(folder: str, sources: Sequence[Source]) -> bool:
    """Return whether the shards of a fetch contain all pages of an earlier result, as they were and in its order."""
    fetched = [source for source in sources if isinstance(source, FetchedShard)]
    earlier = open_stage(folder, ["extract"])
    if not len(sources) == len(fetched) == len(earlier.files("documents-", ".parquet")):
        return False
    try:
        return all(_contains(source, earlier, index) for index, source in enumerate(fetched))
    except InputError:  # a file is damaged
        return False


def _contains(source: FetchedShard, earlier: StageFolder, index: int) -> bool:
    known = EarlierShard(earlier, index, ["url", "fetched_at"], verify=False)
    for page in shards.read_rows(source.pages.path, ["url", "outcome", "fetched_at"]):
        row = known.take(page["url"]) if page["outcome"] == "ok" else None
        if row and page["fetched_at"] != row.get("fetched_at", page["fetched_at"]):
            return False
    return known.is_exhausted


def is_current(row: Row, link: Mapping[str, Any] | None) -> bool:
    """Return whether a document or drop does not depend on what has changed in the link of its page."""
    return "text" not in row or all(row[name] == (link or {}).get(name) for name in _OF_LINK)
