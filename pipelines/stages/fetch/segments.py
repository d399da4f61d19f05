"""The outcomes of a shard: its segments while it is fetched, what an earlier result knows, and its final files.

A killed run repeats only the requests under way. A run that adds links to a result does not request known pages again:
their rows are copied, and their WARC files linked as they are.

A segment is a WARC file and a journal of the outcomes of some links, in the order in which they became known. A line of
the journal is the outcome and the size of the WARC file at that time, as JSON, behind a CRC-32 of both this JSON and
the records since the line before. So a line counts only if the records to which it refers are on the disk, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, require_files
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import ChangedRunError, WebtextError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.records.removals import NO_REMOVALS, Removals
from pipelines.records.schemas import DROPPED_SCHEMA, PAGE_SCHEMA
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LinkShard, classify_links, read_links
from pipelines.stages.fetch.outcomes import LIVE, NO_REQUEST, OK, Outcome
from pipelines.stages.fetch.report import write_tally
from pipelines.stages.fetch.warc import warcinfo_record

# A segment ends when any of these is reached. Only then is it safe from a loss of power, or in an object store at all.
FLUSH_OUTCOMES = 1000
FLUSH_BYTES = 64 << 20
FLUSH_S = 30.0

_COPY_BYTES = 1 << 20
_BATCH_ROWS = 8192

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("link", pa.int32(), nullable=False),
        *(field for field in PAGE_SCHEMA if field.name not in ("url", "warc_file")),
        pa.field("detail", pa.string()),
    ]
)
# Not an outcome: the link keeps its outcome, with the `archives` and `detail` of this row.
NO_CAPTURE = "asked"
# Rows of an earlier result that have a link, at its position, or that are to be fetched again.
_KNOWN_SCHEMA = SEGMENT_SCHEMA.append(pa.field("warc_file", pa.string()))
_UNKNOWN = -1
# Where links are divided as in the earlier result, its shard of the same number has all known links of a shard;
# otherwise all its shards are searched.
_PHASES = ("known", "all-known")
_WARC = "warc.gz"
_JOURNAL = "journal"


class Segment(NamedTuple):
    """The intact part of a segment: its outcomes, and the bytes of the WARC file to which they refer."""

    warc_path: str
    warc_size_bytes: int
    outcomes: pa.Table


class SegmentWriter:
    """Writes further segments into a folder; a context manager that makes pending outcomes durable after an error."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._number = 1 + max(map(shards.shard_number, storage.list_folder(folder)), default=-1)
        self._started_at = time.monotonic()
        self._outcomes = 0
        self._checksum = 0
        self._open_files = contextlib.ExitStack()
        self._files: tuple[storage.HashingWriter, storage.HashingWriter] | None = None

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # If an error ended the crawl, it is the one to report, even if the disk is full and this fails too.
        with contextlib.suppress(*(() if error_type is None else (WebtextError,))):
            self.flush()

    def append(self, records: bytes) -> int:
        """Append WARC records and return their offset in the file of the segment."""
        warc, _ = self._segment()
        offset = warc.size_bytes
        warc.write(records)
        self._checksum = zlib.crc32(records, self._checksum)
        return offset

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a link, whose records were appended before."""
        warc, journal = self._segment()
        line = msgspec.json.encode((warc.size_bytes, outcome))
        warc.flush()
        journal.write(b"%08x %b\n" % (zlib.crc32(line, self._checksum), line))
        journal.flush()
        self._checksum = 0
        self._outcomes += 1
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Start a new segment if this one is large or old enough, and its last records are those of an outcome."""
        if self._checksum:
            return  # no line refers to these records yet, such as those of a redirect
        size_bytes = self._files[0].size_bytes if self._files is not None else 0
        too_old = time.monotonic() - self._started_at >= FLUSH_S
        if self._outcomes >= FLUSH_OUTCOMES or size_bytes >= FLUSH_BYTES or too_old:
            self.flush()

    def flush(self) -> None:
        """Make the segment durable, and start the next one."""
        self._started_at = time.monotonic()
        self._outcomes = self._checksum = 0
        self._files = None
        self._open_files.close()

    def _segment(self) -> tuple[storage.HashingWriter, storage.HashingWriter]:
        """Return the WARC file and the journal that are being written."""
        if self._files is None:
            stem = storage.join(self.folder, f"segment-{self._number:06d}")
            self._number += 1
            # Closed in reverse: in an object store, the journal must not be without its records.
            journal = self._open_files.enter_context(storage.gradual_write(f"{stem}.{_JOURNAL}"))
            self._files = self._open_files.enter_context(storage.gradual_write(f"{stem}.{_WARC}")), journal
        return self._files


def _latest_outcomes(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the latest outcome of each link in some tables of segments, in order of the links.

    Later rows `NO_CAPTURE` add to it. They count for nothing if the segment with the outcome was damaged.
    """
    table = pa.concat_tables(tables, promote_options="default")
    links = table["link"].to_numpy()
    with_outcome = _last_by_link(links, np.flatnonzero(pc.not_equal(table["outcome"], NO_CAPTURE)))
    latest = _last_by_link(links, np.flatnonzero(np.isin(links, links[with_outcome])))
    rows = table.take(pa.array(with_outcome))
    for name in ("archives", "detail"):
        rows = rows.set_column(rows.column_names.index(name), name, table[name].take(pa.array(latest)))
    return rows


def _last_by_link(links: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the last of some rows of each link, in order of the links."""
    order = rows[np.argsort(links[rows], kind="stable")]
    return np.asarray(order[np.diff(links[order], append=-1) != 0])


def open_segments(folder: str) -> list[Segment]:
    """Return the segments of a folder in order, up to the first damage in any of them."""
    names = sorted(name for name in storage.list_folder(folder) if name.endswith(_JOURNAL))
    return [_read_intact(storage.join(folder, name.removesuffix(_JOURNAL))) for name in names]


def _read_intact(stem: str) -> Segment:
    """Return a segment up to the first line that is torn, or that its records do not match."""
    rows: list[dict[str, Any]] = []
    size_bytes = 0
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(storage.open_read(stem + _JOURNAL))
        warc = stack.enter_context(storage.open_read(stem + _WARC)) if storage.exists(stem + _WARC) else None
        for line in journal:
            checksum, _, text = line.removesuffix(b"\n").partition(b" ")
            try:
                end, outcome = msgspec.json.decode(text, type=tuple[int, Outcome])
                records = warc.read(end - size_bytes) if warc is not None and end != size_bytes else b""
                if int(checksum, 16) != zlib.crc32(text, zlib.crc32(records)):
                    break
            except ValueError:  # whatever a disk may hold after a loss of power
                break
            rows.append(msgspec.structs.asdict(outcome))
            size_bytes = end
    return Segment(stem + _WARC, size_bytes, pa.Table.from_pylist(rows, SEGMENT_SCHEMA))


@dataclasses.dataclass(frozen=True)
class FetchContext:
    """What the tasks share: where they write, and the `earlier` result to which the run adds.

    Its outcomes were found by the phase `known`; those to `retry` count as unknown.
    """

    config: FetchConfig
    output: str
    shard_count: int
    earlier: StageFolder | None = None
    retry: Sequence[str] = ()
    known: str = ""
    removals: Removals = NO_REMOVALS

    def segments_folder(self, shard: LinkShard) -> str:
        """Return the folder of the segments of a shard."""
        return storage.join(self.output, WORK, shard.name)

    def known_file(self, shard: LinkShard) -> str:
        """Return the name of the work file with the rows of the earlier result for the links of a shard."""
        return f"{WORK}/{self.known}-{shard.index:05d}.parquet"

    def known_rows(self, shard: LinkShard) -> pa.Table:
        """Return the outcomes that the earlier result has for the links of a shard."""
        if not self.earlier:
            return _KNOWN_SCHEMA.empty_table()
        rows = _read_table(storage.join(self.output, self.known_file(shard)), _KNOWN_SCHEMA)
        return rows.filter(pc.not_equal(rows["link"], _UNKNOWN))

    def latest(self, shard: LinkShard) -> pa.Table:
        """Return the latest outcome of each link of a shard that has one, in order of the links."""
        tables = [segment.outcomes for segment in open_segments(self.segments_folder(shard))]
        return _latest_outcomes([self.known_rows(shard), *tables])


def find_known(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, may_lose: bool) -> FetchContext:
    """Write what the earlier result knows of the links of each shard to work files; return the context with it.

    Raises ChangedRunError if links of the earlier result are not among the links, unless it `may_lose` their rows.
    """
    assert run.earlier is not None
    earlier, retry = open_stage(run.earlier, ["fetch"]), context.retry
    require_files(run.earlier, [file for file in earlier.manifest.files if file.name.endswith(".parquet")], "fetch")
    suffix = f"-retry-{zlib.crc32(' '.join(sorted(retry)).encode()):08x}" if retry else ""
    phases = [f"{name}{suffix}" for name in _PHASES]
    pages = ("shards", context.config.source)
    is_begun = any(run.resumed_entry(phase, shard.name) for phase in pages for shard in link_shards)
    if retry and is_begun and not any(run.resumed_entry(phase, link_shards[0].name) for phase in phases):
        raise ChangedRunError(
            f"{run.output}: an unfinished run retries other reasons; finish it with its own command, or delete this "
            "folder"
        )
    if len(link_shards) != len(earlier.files("pages-", ".parquet")):
        phases = phases[1:]
    for phase in phases:
        context = dataclasses.replace(context, earlier=earlier, known=phase)
        run.map(_find_known_of_shard, link_shards, context, phase=phase, work=True)
        files = [storage.join(run.output, context.known_file(shard)) for shard in link_shards]
        if not (lost := earlier.manifest.records_in - sum(map(shards.count_rows, files))):
            return context
    problem = f"{plural(lost, 'link that was', 'links that were')} fetched {'is' if lost == 1 else 'are'} missing"
    if not may_lose:
        raise run.refuse_addition(
            f"{run.earlier}: {problem} from the links. Use --overwrite to drop their rows (the WARC files keep "
            "their pages), or choose another --output to keep both"
        )
    run.note(f"{problem} from the links: their rows are dropped; the WARC files keep their pages")
    return context


def _find_known_of_shard(shard: LinkShard, context: FetchContext) -> TaskResult:
    """Write the rows of the earlier result for the links of a shard, with the positions of the links.

    A link is known by its request, whose first link has the outcome: a new link may come before the known one.
    """
    assert context.earlier is not None
    links, first_link, link_of_url = read_links(shard), dict[str, int](), dict[str, int]()
    for link, request, _ in classify_links(links, None):
        link_of_url[links[link]] = first_link.setdefault(request, link)
    unknown = {f"dropped.{reason}" for reason in (*NO_REQUEST, *context.retry)}
    number = f"{shard.index:05d}" if context.known.startswith(_PHASES[0]) else ""
    with shards.write_shard(context.output, context.known_file(shard), _KNOWN_SCHEMA) as written:
        for pages in context.earlier.files(f"pages-{number}", ".parquet"):
            urls = _read_table(pages.path, pa.schema([PAGE_SCHEMA.field("url")]))
            is_known = pc.is_in(urls["url"], value_set=pa.array(links, pa.string()))
            if not pc.any(is_known).as_py():
                continue
            rows = _rows_with_details(pages.path).filter(is_known)
            named = zip(rows["url"].to_pylist(), rows["outcome"].to_pylist(), strict=True)
            positions = [_UNKNOWN if outcome in unknown else link_of_url[url] for url, outcome in named]
            rows = rows.append_column("link", pa.array(positions, pa.int32())).select(_KNOWN_SCHEMA.names)
            for batch in rows.cast(_KNOWN_SCHEMA).combine_chunks().to_batches():
                written.write_batch(batch)
    return TaskResult(files=(written.entry,))


def _rows_with_details(pages_path: str) -> pa.Table:
    """Return the rows of a shard with the details of its drops, which have a file of their own in the same order."""
    pages = _read_table(pages_path, PAGE_SCHEMA)
    folder, _, name = pages_path.rpartition("/")
    dropped_path = storage.join(folder, name.replace("pages-", "dropped-"))
    dropped = _read_table(dropped_path, pa.schema([DROPPED_SCHEMA.field("detail")]))
    failed = pc.not_equal(pages["outcome"], OK).to_numpy()
    return pages.append_column("detail", dropped["detail"].take(pa.array(np.cumsum(failed) - 1, mask=~failed)))


def _read_table(path: str, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(shards.read_batches(path, schema.names), schema)


def write_shard_files(shard: LinkShard, context: FetchContext, warcinfo: Mapping[str, str]) -> TaskResult:
    """Write `pages-N.warc.gz`, `pages-N.parquet` and `dropped-N.parquet`; equal segments give equal files.

    The shard takes over the outcomes and WARC files of an earlier result; new pages are then in
    `pages-N-00001.warc.gz` and so on.
    """
    output, index, links = context.output, shard.index, read_links(shard)
    segments = open_segments(context.segments_folder(shard))
    warc_files: list[FileEntry] = []
    for file in context.earlier.files("pages-", ".warc.gz") if context.earlier else ():
        if file.entry and shards.shard_number(file.path) % context.shard_count == index:
            storage.link(file.path, storage.join(output, file.name))
            warc_files.append(file.entry)
    number = sum(file.name.startswith(shard.name) for file in warc_files)
    warc_name = f"{shard.name}-{number:05d}.warc.gz" if number else f"{shard.name}.warc.gz"
    times = [pc.max(segment.outcomes["fetched_at"]).as_py() for segment in segments if segment.outcomes.num_rows]
    info = warcinfo_record(warc_name, max(times, default=dt.datetime.now(dt.UTC)), warcinfo)
    if not warc_files or any(segment.warc_size_bytes for segment in segments):
        warc_files.append(_write_warc(output, warc_name, info, segments))
    tables, start = [context.known_rows(shard)], len(info)
    for segment in segments:
        offsets = pc.add(segment.outcomes["warc_offset"], pa.scalar(start, pa.int64()))
        warc_names = pc.if_else(offsets.is_valid(), pa.scalar(warc_name), pa.scalar(None, pa.string()))
        column = SEGMENT_SCHEMA.get_field_index("warc_offset")
        table = segment.outcomes.set_column(column, SEGMENT_SCHEMA.field(column), offsets)
        tables.append(table.append_column("warc_file", warc_names))
        start += segment.warc_size_bytes
    outcomes = _latest_outcomes(tables)
    if not np.array_equal(outcomes["link"].to_numpy(), np.arange(len(links))):
        raise WebtextError(
            f"{outcomes.num_rows} outcomes do not match {len(links)} links; this is a bug in webtext, please report it"
        )
    outcomes = outcomes.append_column("url", pa.array(links, pa.string()))
    failed = outcomes.select(["url", "outcome", "detail"]).filter(pc.not_equal(outcomes["outcome"], OK))
    reasons = pc.utf8_slice_codeunits(failed["outcome"], len("dropped."))
    pages = _write_table(output, shards.shard_name("pages", index), outcomes.select(PAGE_SCHEMA.names), PAGE_SCHEMA)
    dropped_columns = {"id": failed["url"], "url": failed["url"], "reason": reasons, "detail": failed["detail"]}
    dropped = _write_table(output, shards.shard_name("dropped", index), pa.table(dropped_columns), DROPPED_SCHEMA)
    sources = pc.value_counts(outcomes.filter(pc.equal(outcomes["outcome"], OK))["source"]).to_pylist()
    archived = {f"pages_from_{row['values']}": int(row["counts"]) for row in sources if row["values"] != LIVE}
    return TaskResult(
        records_in=len(links),
        records_out=len(links) - failed.num_rows,
        dropped={str(row["values"]): int(row["counts"]) for row in pc.value_counts(reasons).to_pylist()},
        counts={"page_bytes": int(pc.sum(outcomes["bytes"]).as_py() or 0), **archived},
        files=(*warc_files, pages, dropped, write_tally(output, index, outcomes)),
    )


def _write_warc(output: str, name: str, info: bytes, segments: Sequence[Segment]) -> FileEntry:
    """Write the warcinfo record followed by the records of all segments: gzip members can simply be concatenated."""
    with storage.atomic_write(storage.join(output, name)) as stream:
        stream.write(info)
        for segment in segments:
            if size_bytes := segment.warc_size_bytes:
                with storage.open_read(segment.warc_path) as source:
                    for start in range(0, size_bytes, _COPY_BYTES):
                        stream.write(source.read(min(_COPY_BYTES, size_bytes - start)))
    return FileEntry(name, stream.size_bytes, stream.checksum)


def _write_table(output: str, name: str, table: pa.Table, schema: pa.Schema) -> FileEntry:
    with shards.write_shard(output, name, schema) as written:
        for batch in table.cast(schema).combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
            written.write_batch(batch)
    return written.entry
