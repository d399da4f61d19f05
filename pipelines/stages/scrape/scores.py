"""Scores from a service, for months whose scores in the dumps were recorded at ingestion.

The files of such a month are read once more, and that month's submissions are kept apart whatever their scores are.
Their ids are requested a few thousand per task, so that a killed run resumes; then the new scores decide.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.engine.journal import WORK
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.buckets import write_buckets
from pipelines.records.schemas import make_schema
from pipelines.stages.scrape.arctic_shift import ApiClient, archived_records
from pipelines.stages.scrape.decision import reaches_minimum
from pipelines.stages.scrape.merge import SUBMISSION_SCHEMA, batch_buckets
from pipelines.stages.scrape.reddit_api import connect, submissions_by_name
from pipelines.stages.scrape.reports import GOOD_SCORE, FileStats, has_fresh_scores
from pipelines.stages.scrape.sources import ReadContext, SourceFile, partition_file, read_stats

SCORE_SCHEMA = make_schema(id="string", score="int64?", score_of_dump="int64")
# The maximum number of ids per request.
BATCH_SIZES = {"praw": 100, "arctic-shift": 500}
# Kept between calls: a client knows when its next request is allowed.
_client = functools.lru_cache(maxsize=8)(ApiClient)
# The rows that a task requests, which a killed run requests again: whole requests of either service.
ROWS_PER_TASK = 5000


def fetch_scores(service: str, ids: list[str], api_url: str) -> dict[str, int]:
    """Return the scores of the ids that the service knows, by id, in one request.

    `service` is `praw` (Reddit itself) or `arctic-shift` (at `api_url`, which Reddit ignores). Retries as the listings
    do. Raises UsageError for missing credentials, InputError if the service refuses or does not respond.
    """
    if service == "praw":
        records = submissions_by_name(connect(), [f"t3_{id}" for id in ids])
    else:
        records = archived_records(_client(api_url), ids)
    scores = {record.get("id"): record.get("score") for record in records}
    return {id: score for id in ids if isinstance(score := scores.get(id), int)}


@dataclasses.dataclass(frozen=True)
class ScoreRequest:
    """Some rows of a row group of a file's submissions that wait for their scores."""

    file: SourceFile
    row_group: int
    start: int
    rows: int

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.file.key}-{self.row_group:06d}-{self.start:06d}"

    @property
    def scores_name(self) -> str:
        """The work file of scores."""
        return f"{WORK}/scores-{self.name}.parquet"


def refresh_scores(
    run: StageRun, files: Sequence[SourceFile], months: Sequence[str], context: ReadContext
) -> tuple[list[FileStats], list[str], list[str]]:
    """Re-read the files of some months (YYYY-MM), fetch the scores of these months, and filter by them.

    Returns the counts of the files and their submissions by bucket, which replace those of the first reading, and the
    files of scores. A submission that the service does not know is dropped as `score_not_found`. Raises InputError if
    the fetched scores are no better, since an archive may have lost a month for good.
    """
    service = context.config.refresh_scores or ""
    months_of_files = [sorted(stats.days.by_month().keys() & {*months}) for stats in read_stats(files, run.output)]
    scored = [
        dataclasses.replace(file, unscored_months=tuple(unscored), scored_by=service) if unscored else file
        for file, unscored in zip(files, months_of_files, strict=True)
    ]
    rescored = [file for file in scored if file.scored_by]
    run.map(
        partition_file,
        [file.unscored for file in rescored],
        context,
        phase="read-again",
        work=True,
        unit="bytes",
        cost=operator.attrgetter("size_bytes"),
    )
    requests = [request for file in rescored for request in _score_requests(file, run.output)]
    submissions = plural(sum(request.rows for request in requests), "submission")
    count = sum(-(-request.rows // BATCH_SIZES[service]) for request in requests)
    run.note(f"scores of {', '.join(months)}: re-fetching {submissions} in {plural(count, 'request')}")
    rows = operator.attrgetter("rows")
    run.map(fetch_rows, requests, context, phase="scores", work=True, unit="scores", cost=rows, serial=True)
    run.map(apply_scores, rescored, context, phase="filter-again", work=True, unit="submissions")
    stats = read_stats(scored, run.output)
    known, good = sum(stat.fetched for stat in stats), sum(stat.fetched_good for stat in stats)
    if has_fresh_scores(known, good) and not context.config.accept_fresh_scores:
        other = "praw" if service == "arctic-shift" else "arctic-shift"
        raise InputError(
            f"the scores of {', '.join(months)} from {service} also look recorded at ingestion: {good:,} "
            f"of {known:,} submissions have 3 points. Try --refresh-scores {other}, or use --accept-fresh-scores"
        )
    bucket_files = [file.work_file("submissions.buckets") for file in (*(file.unscored for file in scored), *rescored)]
    return stats, bucket_files, [request.scores_name for request in requests]


def _score_requests(file: SourceFile, output: str) -> Iterator[ScoreRequest]:
    path = storage.join(output, file.unscored.work_file("pending.parquet"))
    with shards.open_stream(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    for group, rows in enumerate(sizes):
        for start in range(0, rows, ROWS_PER_TASK):
            yield ScoreRequest(file, row_group=group, start=start, rows=min(ROWS_PER_TASK, rows - start))


def fetch_rows(request: ScoreRequest, context: ReadContext) -> TaskResult:
    """Fetch the scores of some submissions and write them; null if the service does not know one."""
    output, size = context.output, BATCH_SIZES[request.file.scored_by]
    rows = _pending_rows(request, output)
    ids = rows.column("id").to_pylist()
    scores: dict[str, int] = {}
    for start in range(0, len(ids), size):
        batch = ids[start : start + size]
        scores |= fetch_scores(request.file.scored_by, list(dict.fromkeys(batch)), context.config.api_url)
        progress.advance(len(batch))
    columns = [rows.column("id"), pa.array([scores.get(id) for id in ids], pa.int64()), rows.column("score")]
    with shards.write_shard(output, request.scores_name, SCORE_SCHEMA) as written:
        written.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCORE_SCHEMA))
    return TaskResult(files=(written.entry,))


def apply_scores(file: SourceFile, context: ReadContext) -> TaskResult:
    """Filter a file's submissions by the fetched scores, write the kept ones by bucket, and complete its counts."""
    output = context.output
    [stats] = read_stats([file.unscored], output)
    column = SUBMISSION_SCHEMA.get_field_index("score")
    buckets_name = file.work_file("submissions.buckets")
    with write_buckets(storage.join(output, buckets_name), SUBMISSION_SCHEMA) as written:
        for request in _score_requests(file, output):
            rows = _pending_rows(request, output)
            batches = list(shards.read_batches(storage.join(output, request.scores_name), ["score"]))
            scores = pa.concat_arrays([batch.column("score") for batch in batches])
            known = rows.set_column(column, SUBMISSION_SCHEMA.field(column), pc.fill_null(scores, 0))
            known, values = known.filter(scores.is_valid()), scores.drop_null().to_numpy()
            kept = known.filter(pa.array(reaches_minimum(values, context.filter.min_score)))
            stats.fetched += len(values)
            stats.fetched_good += int(reaches_minimum(values, GOOD_SCORE).sum())
            stats.kept += kept.num_rows
            stats.dropped["low_score"] += known.num_rows - kept.num_rows
            stats.dropped["score_not_found"] += scores.null_count
            written.write(kept, batch_buckets(kept, context.config.shards))
            progress.advance(rows.num_rows)
    stats_entry = shards.write_file(output, file.work_file("stats.json"), stats.to_json())
    return TaskResult(files=(written.entry(buckets_name), stats_entry))


def _pending_rows(request: ScoreRequest, output: str) -> pa.RecordBatch:
    path = storage.join(output, request.file.unscored.work_file("pending.parquet"))
    batches = list(shards.read_batches(path, row_groups=[request.row_group]))
    rows = pa.Table.from_batches(batches, schema=SUBMISSION_SCHEMA).slice(request.start, request.rows)
    return rows.combine_chunks().to_batches()[0]
