"""What is known of the links: by the segments of this run, and by an earlier result, to which it adds links.

Pages that were fetched are not requested again. Their rows are copied, and their WARC files linked as they are.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, require_files
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import ChangedRunError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.inputs import StageFolder, open_stage
from pipelines.records.schemas import PAGE_SCHEMA
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.crawl import classify_links
from pipelines.stages.fetch.links import LinkShard, read_links
from pipelines.stages.fetch.outcomes import NO_REQUEST, OK
from pipelines.stages.fetch.segments import SEGMENT_SCHEMA, latest_outcomes, open_segments

_COLUMNS = [name for name in SEGMENT_SCHEMA.names if name not in ("link", "detail")]
_KNOWN_FIELDS = [field for field in SEGMENT_SCHEMA if field.name != "link"]
_KNOWN_SCHEMA = pa.schema([pa.field("url", pa.string()), *_KNOWN_FIELDS, pa.field("warc_file", pa.string())])
# Where links are divided as they were, the shard of a number has all links of that of the same number; otherwise all
# shards are searched.
_PHASES = ("known", "all-known")


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
            return pa.schema([*SEGMENT_SCHEMA, pa.field("warc_file", pa.string())]).empty_table()
        return _carry_over(storage.join(self.output, _known_file(shard, self.known)), links)

    def latest(self, shard: LinkShard, links: Sequence[str]) -> pa.Table:
        """Return the latest outcome of each link of a shard that has one, in order of the links."""
        tables = [segment.outcomes for segment in open_segments(self.segments_folder(shard))]
        return latest_outcomes([self.known_rows(shard, links), *tables])


def find_known(
    run: StageRun, link_shards: Sequence[LinkShard], source: str, retry: Collection[str], may_lose: bool
) -> str:
    """Write the known outcomes of the links of each shard to work files, and return the phase that wrote them.

    Outcomes to `retry` count as unknown. Raises ChangedRunError if links of the earlier result are not among the links,
    unless it `may_lose` their rows.
    """
    assert run.earlier is not None
    earlier = open_stage(run.earlier, ["fetch"])
    tables = [file for file in earlier.manifest.files if file.name.endswith(".parquet")]
    require_files(run.earlier, tables, "fetch")
    suffix = f"-retry-{zlib.crc32(' '.join(sorted(retry)).encode()):08x}" if retry else ""
    phases = [f"{name}{suffix}" for name in _PHASES]
    is_begun = any(run.resumed_entry(phase, shard.name) for phase in ("shards", source) for shard in link_shards)
    if retry and is_begun and not any(run.resumed_entry(phase, link_shards[0].name) for phase in phases):
        raise ChangedRunError(
            f"{run.output}: an unfinished run retries other reasons; complete it with its command, or delete this "
            "folder"
        )
    if len(link_shards) != len(earlier.files("pages-", ".parquet")):
        phases = phases[1:]
    for phase in phases:
        context = (earlier, frozenset(retry), run.output, phase)
        run.map(_find_known_of_shard, link_shards, context, phase=phase, work=True)
        counts = (storage.read_json(storage.join(run.output, _count_file(shard, phase))) for shard in link_shards)
        if not (lost := earlier.manifest.records_in - sum(counts)):
            return phase
    problem = f"{plural(lost, 'link that was', 'links that were')} fetched {'is' if lost == 1 else 'are'} missing"
    if not may_lose:
        raise run.refuse_addition(
            f"{run.earlier}: {problem} from the links. Use --overwrite to leave out their rows (the WARC files keep "
            "their pages), or choose another --output to keep both"
        )
    run.note(f"{problem} from the links: their rows are left out; the WARC files keep their pages")
    return phase


def known_outcomes(output: str, link_shards: Sequence[LinkShard], phase: str) -> Counter[str]:
    """Return how many links have a known outcome that a phase found: `ok`, or the reason of the drop."""
    counts = Counter[str]()
    for shard in link_shards:
        for batch in shards.read_batches(storage.join(output, _known_file(shard, phase)), ["outcome"]):
            counts.update(outcome.removeprefix("dropped.") for outcome in batch.column("outcome").to_pylist())
    return counts


def _known_file(shard: LinkShard, phase: str) -> str:
    return f"{WORK}/{phase}-{shard.index:05d}.parquet"


def _count_file(shard: LinkShard, phase: str) -> str:
    return f"{WORK}/{phase}-{shard.index:05d}.json"


def earlier_warcs(folder: str, count: int) -> Mapping[int, list[FileEntry]]:
    """Return the WARC files of an earlier result by the shard, of `count`, that takes them over."""
    by_shard = defaultdict(list)
    for file in open_stage(folder, ["fetch"]).manifest.files:
        if file.name.endswith(".warc.gz"):
            # As the shard did that wrote it: pages-00003.warc.gz, pages-00003-00001.warc.gz.
            by_shard[int(file.name.split("-")[1].split(".")[0]) % count].append(file)
    return by_shard


def _carry_over(path: str, links: Sequence[str]) -> pa.Table:
    """Return the outcomes in a work file with the positions of their links, as a segment's with `warc_file`.

    A link is known by its request, whose first link has the outcome: a new link may come before the known one.
    """
    known = pa.Table.from_batches(shards.read_batches(path), _KNOWN_SCHEMA)
    row_of_url = {url: row for row, url in enumerate(known["url"].to_pylist())}
    requests = [request for _, request, _ in classify_links(links, None)]
    rows = {request: row_of_url[url] for url, request in zip(links, requests, strict=True) if url in row_of_url}
    row_of_link = {link: rows.pop(request) for link, request in enumerate(requests) if request in rows}
    table = known.take(pa.array(row_of_link.values(), pa.int64())).drop_columns(["url"])
    return table.add_column(0, SEGMENT_SCHEMA.field("link"), pa.array(row_of_link, pa.int32()))


def _find_known_of_shard(shard: LinkShard, context: tuple[StageFolder, frozenset[str], str, str]) -> TaskResult:
    """Write the known outcomes of a shard's links, and the number of the earlier result's rows with such a link."""
    earlier, retry, output, phase = context
    number = f"{shard.index:05d}" if phase.startswith(_PHASES[0]) else ""
    links = pa.array(read_links(shard), pa.string())
    unwanted = pa.array([f"dropped.{reason}" for reason in (*NO_REQUEST, *retry)])
    count = 0
    with shards.write_shard(output, _known_file(shard, phase), _KNOWN_SCHEMA) as written:
        for pages in earlier.files(f"pages-{number}", ".parquet"):
            urls = _read_columns(pages.path, ["url"])["url"]
            is_known = pc.is_in(urls, value_set=links)
            if known := pc.sum(is_known).as_py():
                count += known
                rows = _rows_with_details(pages.path).filter(is_known)
                rows = rows.filter(pc.invert(pc.is_in(rows["outcome"], value_set=unwanted)))
                for batch in rows.select(_KNOWN_SCHEMA.names).cast(_KNOWN_SCHEMA).combine_chunks().to_batches():
                    written.writer.write_batch(batch)
    return TaskResult(files=(written.entry, shards.write_file(output, _count_file(shard, phase), str(count).encode())))


def _rows_with_details(pages_path: str) -> pa.Table:
    """Return the rows of a shard with the details of its drops, which have a file of their own in the same order."""
    folder, _, name = pages_path.rpartition("/")
    pages = _read_columns(pages_path, [*_COLUMNS, "url", "warc_file"])
    dropped_path = storage.join(folder, name.replace("pages-", "dropped-"))
    details = [batch.column("detail") for batch in shards.read_batches(dropped_path, ["detail"])]
    failed = pc.not_equal(pages["outcome"], OK).to_numpy()
    rows = pa.array(np.cumsum(failed) - 1, mask=~failed)
    return pages.append_column("detail", pa.chunked_array(details, pa.string()).take(rows))


def _read_columns(path: str, names: list[str]) -> pa.Table:
    return pa.Table.from_batches(shards.read_batches(path, names), pa.schema(map(PAGE_SCHEMA.field, names)))
