"""Reads source files without writing anything: what each holds, and which of its submissions are of one URL."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipelines.algorithms.urls import canonical_url
from pipelines.core import storage
from pipelines.core.errors import UsageError
from pipelines.core.run import RunOptions
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.judging import counted_lines
from pipelines.stages.scrape.plain_rows import plain_urls, simplified_urls
from pipelines.stages.scrape.reading import Rejects
from pipelines.stages.scrape.scanning import Lines
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission
from pipelines.stages.scrape.url_lists import DEFAULT_COLUMN, read_url_list


@dataclasses.dataclass(frozen=True)
class SurveyTask:
    """One source file, and the canonical URL whose submissions are looked for, if any."""

    file: SourceFile
    source: str = "dump"
    url_column: str = DEFAULT_COLUMN
    url: str | None = None

    @property
    def name(self) -> str:
        """The label of the file."""
        return self.file.label


@dataclasses.dataclass(frozen=True)
class FoundSubmission:
    """A submission and its line, from 1; in a list of URLs its number among the URLs."""

    file: str
    line: int
    submission: RawSubmission


class BadLines:
    """Counts bad lines by reason and keeps the first."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, Any] | None = None

    def write(self, record: Any) -> None:
        """Take a row of REJECT_SCHEMA."""
        self.reasons[record["reason"]] += 1
        self.first = self.first or record


@dataclasses.dataclass(frozen=True)
class FileSurvey:
    """What one file holds, and the submissions that were looked for. `bad` are its bad lines."""

    file: SourceFile
    stats: FileStats
    bad: BadLines
    found: tuple[FoundSubmission, ...]


def survey_file(task: SurveyTask) -> FileSurvey:
    """Read one file; a damaged dump ends early, which stands in its stats.

    Raises InputError for a list of URLs that is damaged or has no such column.
    """
    stats, bad = FileStats(), BadLines()
    rejects = Rejects(task.file, bad)
    find = _found_in_list if task.source == "urls" else _found_in_dump
    found = tuple(find(task, rejects, stats))
    return FileSurvey(task.file, stats, bad, found)


def survey_files(
    label: str, function: Callable[[SurveyTask], FileSurvey], tasks: Sequence[SurveyTask], options: RunOptions
) -> list[FileSurvey]:
    """Run a function over files, show how many of their bytes are read, and return the results in their order."""
    progress = options.progress
    progress.start(label, sum(storage.size_bytes(task.file.path) for task in tasks), "bytes")
    try:
        done = {task.name: result for task, result in options.executor.map(function, tasks, progress.advance)}
    finally:
        progress.finish()
    return [done[task.name] for task in tasks]


def require_files_source(config: ScrapeConfig, flag: str) -> None:
    """Raise UsageError where the submissions would come from an API, which a command that only reads does not ask."""
    if not config.needs_files:
        raise UsageError(
            f"{flag} reads files, and --source {config.source} asks an API; scrape first, then name the "
            "listing-NNNNN.ndjson.zst that it keeps as a dump"
        )


def _found_in_dump(task: SurveyTask, rejects: Rejects, stats: FileStats) -> Iterator[FoundSubmission]:
    for lines in counted_lines(task.file, rejects, stats):
        if task.url is not None:
            for row in rows_of_url(lines, task.url):
                yield FoundSubmission(task.file.label, lines.first_line + row, lines.submission(row))


def rows_of_url(lines: Lines, url: str) -> list[int]:
    """Return the rows of the lines whose URL has a canonical form.

    That of most URLs is known without Python, so that comparing bytes is enough.
    """
    wanted = url.encode()
    rows = np.flatnonzero(lines.good & lines.has_url)
    found: list[int] = []
    for plain in (plain_urls, simplified_urls):
        urls = plain(lines, rows)
        may_be = np.flatnonzero(urls.spans[:, 1] - urls.spans[:, 0] == len(wanted)).tolist()
        found += [int(urls.rows[at]) for at in may_be if urls.array[slice(*urls.spans[at])].tobytes() == wanted]
        rows = np.setdiff1d(rows, urls.rows, assume_unique=True)
    found += [row for row in rows.tolist() if _is_of_url(lines.submission(row), url)]
    return sorted(found)


def _found_in_list(task: SurveyTask, rejects: Rejects, stats: FileStats) -> Iterator[FoundSubmission]:
    urls = 0
    for urls, submission in enumerate(read_url_list(task.file, rejects, task.url_column), 1):
        if task.url is not None and _is_of_url(submission, task.url):
            yield FoundSubmission(task.file.label, urls, submission)
    stats.bad_lines = rejects.count
    stats.lines = urls + rejects.count


def _is_of_url(submission: RawSubmission, url: str) -> bool:
    return submission.url is not None and canonical_url(submission.url) == url
