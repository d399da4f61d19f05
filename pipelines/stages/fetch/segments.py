"""The outcomes of a shard: its segments while it is fetched, and its final files.

A killed run repeats only the requests under way. A run that adds links to a result does not request known pages again:
their outcomes are the first segments, and their WARC files are linked as they are.

A segment is a WARC file and a journal of the outcomes of some links, in the order in which they became known. A line of
the journal is the outcome and the size of the WARC file at that time, as JSON, behind a CRC-32 of both this JSON and
the records since the line before. So a line counts only if the records to which it refers are on the disk, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, require_files
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import ChangedRunError, InputError, WebtextError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.drops import Drops
from pipelines.records.inputs import StageFolder
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

_COPY_BYTES = 8 << 20
# Where links are divided as in the earlier result, its shard of the same number has all known links of a shard;
# otherwise all its shards are searched.
_PHASES = ("known", "all-known")
# The number of rows of the earlier result for the links of a shard, by the phase that found them.
_KNOWN = WORK + "/{}-{:05d}.json"
_SEGMENT = "segment-"
_WARC = ".warc.gz"
_JOURNAL = ".journal"
_OUTCOME = re.compile('"outcome":"(?:dropped[.])?([a-z_]+)"')


class Segment(NamedTuple):
    """The intact part of a segment: its outcomes, and the bytes of the WARC file to which they refer."""

    warc_path: str
    warc_size_bytes: int
    outcomes: list[Outcome]


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

    def append(self, records: bytes) -> tuple[str, int]:
        """Append WARC records and return the name of their file and their offset."""
        warc, _ = self._segment()
        place = f"{_SEGMENT}{self._number - 1:06d}{_WARC}", warc.size_bytes
        warc.write(records)
        self._checksum = isal_zlib.crc32(records, self._checksum)
        return place

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a link, whose records were appended before."""
        warc, journal = self._segment()
        line = msgspec.json.encode((warc.size_bytes, outcome))
        warc.flush()
        journal.write(b"%08x %b\n" % (isal_zlib.crc32(line, self._checksum), line))
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
            stem = storage.join(self.folder, f"{_SEGMENT}{self._number:06d}")
            self._number += 1
            # Closed in reverse: in an object store, the journal must not be without its records.
            journal = self._open_files.enter_context(storage.gradual_write(f"{stem}{_JOURNAL}"))
            self._files = self._open_files.enter_context(storage.gradual_write(f"{stem}{_WARC}")), journal
        return self._files


def open_segments(folder: str) -> list[Segment]:
    """Return the segments of a folder in order, up to the first damage in any of them."""
    names = sorted(name for name in storage.list_folder(folder) if name.endswith(_JOURNAL))
    return [_read_intact(storage.join(folder, name.removesuffix(_JOURNAL))) for name in names]


def _read_intact(stem: str) -> Segment:
    """Return a segment up to the first line that is torn, or that its records do not match."""
    segment = Segment(stem + _WARC, 0, [])
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(storage.open_read(stem + _JOURNAL))
        warc = stack.enter_context(storage.open_read(stem + _WARC)) if storage.exists(stem + _WARC) else None
        for line in journal:
            checksum, _, text = line.removesuffix(b"\n").partition(b" ")
            try:
                end, outcome = msgspec.json.decode(text, type=tuple[int, Outcome])
                size_bytes = end - segment.warc_size_bytes
                records = warc.read(size_bytes) if warc is not None and size_bytes else b""
                if int(checksum, 16) != isal_zlib.crc32(text, isal_zlib.crc32(records)):
                    break
            except ValueError:  # whatever a disk may hold after a loss of power
                break
            segment.outcomes.append(outcome)
            segment = segment._replace(warc_size_bytes=end)
    return segment


def latest_outcomes(segments: Sequence[Segment]) -> dict[int, Outcome]:
    """Return the latest outcome of each link that has one, in order of the links.

    An outcome that repeats an earlier one, after an archive had no page, does not count if its records were damaged.
    """
    sizes = {storage.basename(segment.warc_path): segment.warc_size_bytes for segment in segments}
    latest: dict[int, Outcome] = {}
    for outcome in (outcome for segment in segments for outcome in segment.outcomes):
        file = outcome.warc_file or ""
        if not file.startswith(_SEGMENT) or (outcome.warc_offset or 0) < sizes.get(file, 0):
            latest[outcome.link] = outcome
    return dict(sorted(latest.items()))


def describe_latest(output: str) -> str:
    """Return the outcomes in the latest segments of a running fetch, in one line; empty if there are none."""
    counts = Counter[str]()
    journals = [path for path in storage.walk_files(output) if path.endswith(_JOURNAL)]
    for path in {storage.parent(path): path for path in journals}.values():  # the last of each shard
        with contextlib.suppress(InputError):  # the shard has just been completed
            counts.update(_OUTCOME.findall(storage.read_bytes(path).decode("utf-8", "replace")))
    latest = ", ".join(f"{outcome} {count:,}" for outcome, count in counts.most_common())
    return latest and f"latest outcomes: {latest}"


@dataclasses.dataclass(frozen=True)
class FetchContext:
    """What the tasks share: where they write, and the `earlier` result to which the run adds.

    Its outcomes for the reasons to `retry` count as unknown.
    """

    config: FetchConfig
    output: str
    shard_count: int
    earlier: StageFolder | None = None
    retry: Sequence[str] = ()
    removals: Removals = NO_REMOVALS

    def segments_folder(self, shard: LinkShard) -> str:
        """Return the folder of the segments of a shard."""
        return storage.join(self.output, WORK, shard.name)

    def latest(self, shard: LinkShard) -> dict[int, Outcome]:
        """Return the latest outcome of each link of a shard that has one, in order of the links."""
        return latest_outcomes(open_segments(self.segments_folder(shard)))


def find_known(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, may_lose: bool) -> None:
    """Write what the earlier result knows of the links of each shard as segments.

    Raises ChangedRunError if links of the earlier result are not among the links, unless it `may_lose` their rows.
    """
    assert context.earlier is not None
    earlier, retry = context.earlier, context.retry
    tables = [file for file in earlier.manifest.files if file.name.endswith(".parquet")]
    require_files(earlier.path, tables, "fetch")
    suffix = f"-retry-{isal_zlib.crc32(' '.join(sorted(retry)).encode()):08x}" if retry else ""
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
        run.map(_find_known_of_shard, link_shards, (context, phase), phase=phase, work=True)
        files = [storage.join(run.output, _KNOWN.format(phase, shard.index)) for shard in link_shards]
        if not (lost := earlier.manifest.records_in - sum(storage.map_files(storage.read_json, files))):
            return
    missing = f"{plural(lost, 'link that was', 'links that were')} fetched {'is' if lost == 1 else 'are'} missing"
    if not may_lose:
        raise run.refuse_addition(
            f"{run.earlier}: {missing} from the links. Use --overwrite to drop their rows (the WARC files keep their "
            "pages), or choose another --output to keep both"
        )
    run.note(f"{missing} from the links: their rows are dropped; the WARC files keep their pages")


def _find_known_of_shard(shard: LinkShard, context_and_phase: tuple[FetchContext, str]) -> TaskResult:
    """Write the outcomes of the earlier result for the links of a shard as segments, and the number of their rows.

    A link is known by its request, whose first link has the outcome: a new link may come before the known one.
    """
    context, phase = context_and_phase
    assert context.earlier is not None
    links, first_link, link_of_url = read_links(shard, context.output), dict[str, int](), dict[str, int]()
    for link, request, _ in classify_links(links, None):
        link_of_url[links[link]] = first_link.setdefault(request, link)
    rows, number = 0, f"{shard.index:05d}" if phase.startswith(_PHASES[0]) else ""
    with SegmentWriter(context.segments_folder(shard)) as writer:
        for pages in context.earlier.files(f"pages-{number}", ".parquet"):
            for row in _rows_of_links(pages.path, pa.array(links, pa.string())):
                rows += 1
                link = link_of_url[row.pop("url")]
                if row["outcome"].removeprefix("dropped.") not in (*NO_REQUEST, *context.retry):
                    writer.add(Outcome(link, **row))
    return TaskResult(files=(shards.write_file(context.output, _KNOWN.format(phase, shard.index), b"%d" % rows),))


def _rows_of_links(pages_path: str, links: pa.StringArray) -> list[dict[str, Any]]:
    """Return the rows of links in a shard, with the details of drops, which have a file of their own in this order."""
    pages = _read_table(pages_path, PAGE_SCHEMA)
    folder, _, name = pages_path.rpartition("/")
    details = _read_table(storage.join(folder, name.replace("pages-", "dropped-")), DROPPED_SCHEMA)["detail"]
    failed = pc.not_equal(pages["outcome"], OK).to_numpy()
    pages = pages.append_column("detail", details.take(pa.array(np.cumsum(failed) - 1, mask=~failed)))
    rows: list[dict[str, Any]] = pages.filter(pc.is_in(pages["url"], value_set=links)).to_pylist()
    return rows


def _read_table(path: str, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(shards.read_batches(path, schema.names), schema)


def write_shard_files(
    links: Sequence[str], shard: LinkShard, context: FetchContext, warcinfo: Mapping[str, str]
) -> TaskResult:
    """Write `pages-N.warc.gz`, `pages-N.parquet` and `dropped-N.parquet`; equal segments give equal files.

    The shard takes over the WARC files of an earlier result; new pages are then in `pages-N-00001.warc.gz` and so on.
    """
    output, index = context.output, shard.index
    segments = open_segments(context.segments_folder(shard))
    outcomes = latest_outcomes(segments)
    files = _link_warc_files(shard, context)
    number = sum(file.name.startswith(shard.name) for file in files)
    warc_name = f"{shard.name}-{number:05d}.warc.gz" if number else f"{shard.name}.warc.gz"
    starts: dict[str | None, int] = {}
    if not files or any(segment.warc_size_bytes for segment in segments):
        newest = max((outcome.fetched_at for outcome in outcomes.values()), default=dt.datetime.now(dt.UTC))
        entry, starts = _write_warc(output, warc_name, warcinfo_record(warc_name, newest, warcinfo), segments)
        files.append(entry)
    pages_name, dropped_name = (shards.shard_name(noun, index) for noun in ("pages", "dropped"))
    counts = Counter(page_bytes=sum(outcome.bytes for outcome in outcomes.values()))
    with (
        shards.write_shard(output, pages_name, PAGE_SCHEMA) as pages,
        shards.write_shard(output, dropped_name, DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.write)
        for url, outcome in zip(links, outcomes.values(), strict=True):
            if outcome.warc_file in starts:
                offset = starts[outcome.warc_file] + (outcome.warc_offset or 0)
                outcome = msgspec.structs.replace(outcome, warc_file=warc_name, warc_offset=offset)
            pages.write({"url": url, **msgspec.structs.asdict(outcome)})
            if outcome.outcome != OK:
                drops.add(outcome.outcome.removeprefix("dropped."), url, url, outcome.detail)
            elif outcome.source != LIVE:
                counts[f"pages_from_{outcome.source}"] += 1
    tally = write_tally(output, index, zip(links, outcomes.values(), strict=True))
    files += [pages.entry, dropped.entry, tally]
    return drops.task_result(len(links) - drops.counts.total(), tuple(files), counts)


def _link_warc_files(shard: LinkShard, context: FetchContext) -> list[FileEntry]:
    """Link the WARC files of the earlier result that this shard takes over; every shard does so for some of them."""
    earlier = context.earlier.files("pages-", ".warc.gz") if context.earlier else []
    files = [file for file in earlier if shards.shard_number(file.path) % context.shard_count == shard.index]
    for file in files:
        storage.link(file.path, storage.join(context.output, file.name))
    return [file.entry for file in files if file.entry]


def _write_warc(
    output: str, name: str, info: bytes, segments: Sequence[Segment]
) -> tuple[FileEntry, dict[str | None, int]]:
    """Write the warcinfo record and the records of all segments, as gzip members; return where each segment begins."""
    starts: dict[str | None, int] = {}
    with storage.atomic_write(storage.join(output, name)) as stream:
        stream.write(info)
        for segment in segments:
            starts[storage.basename(segment.warc_path)] = stream.size_bytes
            for start in range(0, segment.warc_size_bytes, _COPY_BYTES):
                size_bytes = min(_COPY_BYTES, segment.warc_size_bytes - start)
                stream.write(storage.read_range(segment.warc_path, start, size_bytes))
    return FileEntry(name, stream.size_bytes, stream.checksum), starts
