"""Fetches the scores of months anew whose scores in the dumps were taken at ingestion.

The files that hold such a month are read once more, without judging that month's submissions by their scores. Their
ids are asked for, some thousand a task, so that a run that was killed goes on; then the new scores judge.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import progress, shards, storage
from pipelines.core.buckets import write_buckets
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import StageRun, TaskResult
from pipelines.stages.scrape.accounting import read_stats
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.months import look_fresh
from pipelines.stages.scrape.partition import PartitionTask, file_bytes, partition_file
from pipelines.stages.scrape.scores import batch_size, fetch_scores
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, bucket_of_domain

SCORE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("score", pa.int64()),
        pa.field("score_of_dump", pa.int64(), nullable=False),
    ]
)

_GOOD_SCORE = 3

# What the services allow, for the estimate that is shown beforehand: some two requests a second, a hundred a minute.
_REQUESTS_A_SECOND = {"arctic-shift": 2.0, "praw": 100 / 60}

# The rows that a task asks for, and a run that was killed again: whole requests of either service.
_TASK_ROWS = 5000


@dataclasses.dataclass(frozen=True)
class Refreshed:
    """The reading of all files after the scores were fetched: what takes the place of the first reading."""

    tasks: list[PartitionTask]
    stats: list[FileStats]
    work_files: list[str]
    score_files: list[str]
    found: int

    def write_scores(self, output: str) -> FileEntry:
        """Put the fetched scores into one list, so that a link's score can be explained."""
        with shards.write_shard(output, shards.shard_name("scores", 0), SCORE_SCHEMA) as scores:
            for path in self.score_files:
                for batch in shards.read_batches(path):
                    scores.writer.write_batch(batch)
        return scores.entry


@dataclasses.dataclass(frozen=True)
class ScoresTask:
    """Some rows of a row group of submissions that wait for their scores; `key` says which submissions."""

    key: str
    pending: str
    row_group: int
    start: int
    rows: int
    service: str
    api_url: str
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.key}-{self.service}-{self.row_group:06d}-{self.start:06d}"

    @property
    def scores_name(self) -> str:
        """The name of the work file of scores in the output folder."""
        return f"{self.work}/scores-{self.name}.parquet"


@dataclasses.dataclass(frozen=True)
class ApplyTask:
    """The submissions of one file whose scores were fetched."""

    source: PartitionTask
    scores: tuple[ScoresTask, ...]
    service: str
    least_score: int | None

    @property
    def name(self) -> str:
        """The name of the file's task, and whose scores judge."""
        return f"{self.source.name}-{self.service}"

    @property
    def judged_name(self) -> str:
        """The name of the work file of what became of them in the output folder."""
        return f"{self.source.work}/judged-{self.source.key}-{self.service}.json"

    @property
    def refreshed_name(self) -> str:
        """The name of the work file of submissions in the output folder."""
        return f"{self.source.work}/refreshed-{self.source.key}-{self.service}.buckets"


@dataclasses.dataclass
class Judged:
    """What became of the submissions of a file; `good` have 3 points or more, of the `known`."""

    known: int = 0
    good: int = 0
    kept: int = 0
    low_score: int = 0
    not_found: int = 0


def refresh_scores(
    run: StageRun, config: ScrapeConfig, tasks: list[PartitionTask], stats: list[FileStats], months: list[str]
) -> Refreshed:
    """Read the files that hold some months (YYYY-MM) again, fetch the scores of these months, and judge by them.

    A submission that the service does not know is dropped as `score_not_found`.
    """
    held = [{counts.month for counts in each.days.months()} & {*months} for each in stats]
    tasks = [
        dataclasses.replace(task, unscored_months=tuple(sorted(those))) if those else task
        for task, those in zip(tasks, held, strict=True)
    ]
    again = [task for task in tasks if task.unscored_months]
    run.map(partition_file, again, phase="read-again", work=True, unit="bytes", cost=file_bytes)
    scores = [_scores_tasks(task, config) for task in again]
    to_fetch = [each for of_file in scores for each in of_file]
    total = sum(each.rows for each in to_fetch)
    requests = sum(-(-each.rows // batch_size(each.service)) for each in to_fetch)
    service = config.refresh_scores or ""
    minutes = requests / _REQUESTS_A_SECOND[service] / 60
    run.note(
        f"scores of {', '.join(months)}: {total} submissions are asked for anew in {requests} requests, "
        f"which takes {minutes:.0f} minutes or more"
    )
    run.map(fetch_rows, to_fetch, phase="scores", work=True, unit="scores", cost=_rows, serial=True)
    least_score = tasks[0].selection.least_score
    apply = [ApplyTask(task, tuple(of_file), service, least_score) for task, of_file in zip(again, scores, strict=True)]
    run.map(apply_scores, apply, phase="judge-again", work=True, unit="submissions")
    judged = [Judged(**storage.read_json(storage.join(run.output, each.judged_name))) for each in apply]
    _refuse_fresh(config, months, judged)
    stats = read_stats(tasks)
    for task, found in zip(again, judged, strict=True):
        own = stats[tasks.index(task)]
        own.kept += found.kept
        own.dropped["low_score"] += found.low_score
        own.dropped["score_not_found"] += found.not_found
    return Refreshed(
        tasks,
        stats,
        [*(task.submissions_name for task in tasks), *(each.refreshed_name for each in apply)],
        [storage.join(run.output, each.scores_name) for each in to_fetch],
        total - sum(found.not_found for found in judged),
    )


def _refuse_fresh(config: ScrapeConfig, months: list[str], judged: list[Judged]) -> None:
    """Raise InputError where the fetched scores are no better: an archive may have lost a month for good."""
    known, good = sum(found.known for found in judged), sum(found.good for found in judged)
    if look_fresh(known, good) and not config.accept_fresh_scores:
        other = "praw" if config.refresh_scores == "arctic-shift" else "arctic-shift"
        raise InputError(
            f"the scores of {', '.join(months)} that {config.refresh_scores} gives look taken at ingestion too: {good} "
            f"of {known} submissions have 3 points. Try --refresh-scores {other}, or go on with --accept-fresh-scores"
        )


def fetch_rows(task: ScoresTask) -> TaskResult:
    """Ask for the scores of some submissions and write them; null where the service does not know one."""
    rows = _pending_rows(task)
    ids, old = rows.column("id").to_pylist(), rows.column("score").to_pylist()
    size = batch_size(task.service)
    found: dict[str, int] = {}
    for start in range(0, len(ids), size):
        found |= fetch_scores(task.service, list(dict.fromkeys(ids[start : start + size])), task.api_url)
        progress.advance(len(ids[start : start + size]))
    with shards.write_shard(task.output, task.scores_name, SCORE_SCHEMA) as written:
        columns = [pa.array(ids), pa.array([found.get(id) for id in ids], pa.int64()), pa.array(old, pa.int64())]
        written.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCORE_SCHEMA))
    return TaskResult(files=(written.entry,))


def apply_scores(task: ApplyTask) -> TaskResult:
    """Judge the submissions of a file by the scores that were fetched, and write those that stay by bucket."""
    source, judged = task.source, Judged()
    with write_buckets(storage.join(source.output, task.refreshed_name), SUBMISSION_SCHEMA) as written:
        for rows, scores in _rows_and_scores(task.scores):
            known = pc.is_valid(scores)
            enough = pc.greater_equal(scores, task.least_score) if task.least_score is not None else known
            stays = pc.fill_null(enough, False)
            judged.known += pc.sum(known).as_py()
            judged.good += pc.sum(pc.greater_equal(scores, _GOOD_SCORE)).as_py() or 0
            judged.not_found += rows.num_rows - pc.sum(known).as_py()
            judged.low_score += pc.sum(known).as_py() - pc.sum(stays).as_py()
            judged.kept += pc.sum(stays).as_py()
            place = SUBMISSION_SCHEMA.get_field_index("score")
            kept = rows.set_column(place, SUBMISSION_SCHEMA.field("score"), pc.fill_null(scores, 0)).filter(stays)
            if kept.num_rows:
                domains = kept.column("domain").to_pylist()
                buckets = np.array([bucket_of_domain(domain, source.shards) for domain in domains], np.int32)
                written.writer.write(kept, buckets)
            progress.advance(rows.num_rows)
    entry = FileEntry(task.refreshed_name, written.size_bytes, written.sha256)
    data = json.dumps(dataclasses.asdict(judged)).encode()
    return TaskResult(files=(entry, shards.write_file(source.output, task.judged_name, data)))


def _scores_tasks(task: PartitionTask, config: ScrapeConfig) -> list[ScoresTask]:
    path = storage.join(task.output, task.pending_name)
    with storage.open_read(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    service, url = config.refresh_scores or "", config.api_url
    return [
        ScoresTask(task.key, path, group, start, min(_TASK_ROWS, rows - start), service, url, task.output, task.work)
        for group, rows in enumerate(sizes)
        for start in range(0, rows, _TASK_ROWS)
    ]


def _pending_rows(task: ScoresTask) -> pa.RecordBatch:
    batches = list(shards.read_batches(task.pending, row_groups=[task.row_group]))
    rows = pa.Table.from_batches(batches, schema=SUBMISSION_SCHEMA).slice(task.start, task.rows)
    return rows.combine_chunks().to_batches()[0]


def _rows_and_scores(tasks: Sequence[ScoresTask]) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    for task in tasks:
        rows = _pending_rows(task)
        batches = list(shards.read_batches(storage.join(task.output, task.scores_name), ["score"]))
        yield rows, pa.concat_arrays([batch.column("score") for batch in batches])


def _rows(task: ScoresTask) -> int:
    return task.rows
