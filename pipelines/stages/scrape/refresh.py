"""Re-fetches the scores of months whose scores in the dumps were recorded at ingestion.

The files of such a month are read once more, and that month's submissions are kept whatever their scores are. Their
ids are requested a few thousand per task, so that a killed run resumes; then the new scores decide.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.buckets import write_buckets
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.months import has_fresh_scores
from pipelines.stages.scrape.partition import FileToRead, ReadContext, file_bytes, partition_file, read_stats
from pipelines.stages.scrape.scores import batch_size, fetch_scores
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, batch_buckets

SCORE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("score", pa.int64()),
        pa.field("score_of_dump", pa.int64(), nullable=False),
    ]
)

_GOOD_SCORE = 3

# What the services allow, for the estimate: about two requests per second, a hundred per minute.
_REQUESTS_PER_SECOND = {"arctic-shift": 2.0, "praw": 100 / 60}

# The rows that a task requests, which a killed run requests again: whole requests of either service.
ROWS_PER_TASK = 5000


@dataclasses.dataclass(frozen=True)
class Refreshed:
    """The files after the scores were fetched; replaces the first reading."""

    files: list[FileToRead]
    stats: list[FileStats]
    work_files: list[str]
    score_files: list[str]
    fetched: int

    def write_scores(self, output: str) -> FileEntry:
        """Write the fetched scores as one list, so that the score of a link can be explained."""
        with shards.write_shard(output, shards.shard_name("scores", 0), SCORE_SCHEMA) as scores:
            for name in self.score_files:
                for batch in shards.read_batches(storage.join(output, name)):
                    scores.writer.write_batch(batch)
        return scores.entry


@dataclasses.dataclass(frozen=True)
class ScoreRequest:
    """Some rows of a row group of a file's submissions that wait for their scores."""

    file: FileToRead
    service: str
    row_group: int
    start: int
    rows: int

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.file.key}-{self.service}-{self.row_group:06d}-{self.start:06d}"

    @property
    def scores_name(self) -> str:
        """The work file of scores."""
        return f"{WORK}/scores-{self.name}.parquet"


@dataclasses.dataclass(frozen=True)
class RefreshedFile:
    """One file, and the requests for the scores of its submissions."""

    file: FileToRead
    requests: tuple[ScoreRequest, ...]
    service: str

    @property
    def name(self) -> str:
        """The name of the file's task and of the service."""
        return f"{self.file.name}-{self.service}"

    @property
    def counts_name(self) -> str:
        """The work file of counts."""
        return f"{WORK}/counts-{self.file.key}-{self.service}.json"

    @property
    def submissions_name(self) -> str:
        """The work file of submissions that reach the score."""
        return f"{WORK}/refreshed-{self.file.key}-{self.service}.buckets"


@dataclasses.dataclass
class ScoreCounts:
    """Counts of a file's submissions by their fetched scores; `good` of the `known` have 3 points or more."""

    known: int = 0
    good: int = 0
    kept: int = 0
    low_score: int = 0
    not_found: int = 0


def refresh_scores(
    run: StageRun,
    config: ScrapeConfig,
    files: list[FileToRead],
    stats: list[FileStats],
    months: list[str],
    context: ReadContext,
) -> Refreshed:
    """Re-read the files of some months (YYYY-MM), fetch the scores of these months, and filter by them.

    A submission that the service does not know is dropped as `score_not_found`.
    """
    service = config.refresh_scores or ""
    fresh = [{counts.month for counts in stat.days.months()} & {*months} for stat in stats]
    files = [FileToRead(item.file, tuple(sorted(own))) for item, own in zip(files, fresh, strict=True)]
    again = [item for item in files if item.unscored_months]
    run.map(partition_file, again, context, phase="read-again", work=True, unit="bytes", cost=file_bytes)
    refreshed = [RefreshedFile(item, tuple(_score_requests(item, service, run.output)), service) for item in again]
    requests = [request for item in refreshed for request in item.requests]
    total = sum(request.rows for request in requests)
    _note_estimate(run, requests, service, months)
    fetch_context = (run.output, config.api_url)
    run.map(fetch_rows, requests, fetch_context, phase="scores", work=True, unit="scores", cost=_rows, serial=True)
    run.map(apply_scores, refreshed, context, phase="filter-again", work=True, unit="submissions")
    counts = [ScoreCounts(**storage.read_json(storage.join(run.output, item.counts_name))) for item in refreshed]
    _check_scores(config, months, counts)
    stats = read_stats(files, run.output)
    for item, count in zip(again, counts, strict=True):
        stat = stats[files.index(item)]
        stat.kept += count.kept
        stat.dropped["low_score"] += count.low_score
        stat.dropped["score_not_found"] += count.not_found
    return Refreshed(
        files=files,
        stats=stats,
        work_files=[*(item.submissions_name for item in files), *(item.submissions_name for item in refreshed)],
        score_files=[request.scores_name for request in requests],
        fetched=total - sum(count.not_found for count in counts),
    )


def _note_estimate(run: StageRun, requests: Sequence[ScoreRequest], service: str, months: Sequence[str]) -> None:
    rows = sum(request.rows for request in requests)
    count = sum(-(-request.rows // batch_size(service)) for request in requests)
    minutes = count / _REQUESTS_PER_SECOND[service] / 60
    run.note(
        f"scores of {', '.join(months)}: re-fetching {plural(rows, 'submission')} in {plural(count, 'request')}, "
        f"at least {minutes:.0f} minutes"
    )


def _check_scores(config: ScrapeConfig, months: list[str], counts: list[ScoreCounts]) -> None:
    """Raise InputError if the fetched scores are no better: an archive may have lost a month for good."""
    known, good = sum(count.known for count in counts), sum(count.good for count in counts)
    if has_fresh_scores(known, good) and not config.accept_fresh_scores:
        other = "praw" if config.refresh_scores == "arctic-shift" else "arctic-shift"
        raise InputError(
            f"the scores of {', '.join(months)} from {config.refresh_scores} also look recorded at ingestion: {good:,} "
            f"of {known:,} submissions have 3 points. Try --refresh-scores {other}, or use --accept-fresh-scores"
        )


def fetch_rows(request: ScoreRequest, context: tuple[str, str]) -> TaskResult:
    """Fetch the scores of some submissions and write them; null if the service does not know one.

    `context` is the output folder and the URL of Arctic Shift's API.
    """
    output, api_url = context
    rows = _pending_rows(request, output)
    ids, old = rows.column("id").to_pylist(), rows.column("score").to_pylist()
    size = batch_size(request.service)
    scores: dict[str, int] = {}
    for start in range(0, len(ids), size):
        scores |= fetch_scores(request.service, list(dict.fromkeys(ids[start : start + size])), api_url)
        progress.advance(len(ids[start : start + size]))
    with shards.write_shard(output, request.scores_name, SCORE_SCHEMA) as written:
        columns = [pa.array(ids), pa.array([scores.get(id) for id in ids], pa.int64()), pa.array(old, pa.int64())]
        written.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCORE_SCHEMA))
    return TaskResult(files=(written.entry,))


def apply_scores(item: RefreshedFile, context: ReadContext) -> TaskResult:
    """Filter the submissions of a file by the fetched scores, and write the kept ones by bucket."""
    counts, output, min_score = ScoreCounts(), context.output, context.filter.min_score
    with write_buckets(storage.join(output, item.submissions_name), SUBMISSION_SCHEMA) as written:
        for rows, scores in _rows_and_scores(item.requests, output):
            known = pc.is_valid(scores)
            is_kept = pc.fill_null(known if min_score is None else pc.greater_equal(scores, min_score), False)
            counts.known += pc.sum(known).as_py()
            counts.good += pc.sum(pc.greater_equal(scores, _GOOD_SCORE)).as_py() or 0
            counts.not_found += rows.num_rows - pc.sum(known).as_py()
            counts.low_score += pc.sum(known).as_py() - pc.sum(is_kept).as_py()
            counts.kept += pc.sum(is_kept).as_py()
            column = SUBMISSION_SCHEMA.get_field_index("score")
            kept = rows.set_column(column, SUBMISSION_SCHEMA.field("score"), pc.fill_null(scores, 0)).filter(is_kept)
            written.writer.write(kept, batch_buckets(kept, context.shards))
            progress.advance(rows.num_rows)
    entry = written.entry(item.submissions_name)
    data = json.dumps(dataclasses.asdict(counts)).encode()
    return TaskResult(files=(entry, shards.write_file(output, item.counts_name, data)))


def _score_requests(item: FileToRead, service: str, output: str) -> Iterator[ScoreRequest]:
    path = storage.join(output, item.pending_name)
    with shards.open_stream(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    for group, rows in enumerate(sizes):
        for start in range(0, rows, ROWS_PER_TASK):
            size = min(ROWS_PER_TASK, rows - start)
            yield ScoreRequest(file=item, service=service, row_group=group, start=start, rows=size)


def _pending_rows(request: ScoreRequest, output: str) -> pa.RecordBatch:
    path = storage.join(output, request.file.pending_name)
    batches = list(shards.read_batches(path, row_groups=[request.row_group]))
    rows = pa.Table.from_batches(batches, schema=SUBMISSION_SCHEMA).slice(request.start, request.rows)
    return rows.combine_chunks().to_batches()[0]


def _rows_and_scores(requests: Sequence[ScoreRequest], output: str) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    for request in requests:
        batches = list(shards.read_batches(storage.join(output, request.scores_name), ["score"]))
        yield _pending_rows(request, output), pa.concat_arrays([batch.column("score") for batch in batches])


def _rows(request: ScoreRequest) -> int:
    return request.rows
