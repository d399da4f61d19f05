"""Reads source files without writing anything: what each holds, and which of its submissions are of one URL."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from pipelines.algorithms.web.urls import canonical_url
from pipelines.core import storage
from pipelines.core.errors import UsageError
from pipelines.core.executor import item_name
from pipelines.core.progress import show_progress
from pipelines.core.run import RunOptions
from pipelines.core.url_lists import DEFAULT_COLUMN
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.judging import counted_lines
from pipelines.stages.scrape.plain_rows import PlainUrls, plain_urls, simplified_urls
from pipelines.stages.scrape.reading import Rejects
from pipelines.stages.scrape.scanning import Lines
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission
from pipelines.stages.scrape.url_lists import counted_urls

# A file's URLs of one length differ in these last bytes, nearly all of them.
_COMPARED_BYTES = 8


@dataclasses.dataclass(frozen=True)
class SurveyTask:
    """One source file, and the canonical URL whose submissions are looked for, if any; of those near it are counted."""

    file: SourceFile
    source: str = "dump"
    url_column: str = DEFAULT_COLUMN
    url: str | None = None
    near: tuple[str, ...] = ()

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
    """What one file holds, and the submissions that were looked for. `bad` are its bad lines.

    `near` has how many submissions there are of each near URL that has any.
    """

    file: SourceFile
    stats: FileStats
    bad: BadLines
    found: tuple[FoundSubmission, ...]
    near: Counter[str]


def survey_file(task: SurveyTask) -> FileSurvey:
    """Read one file; a damaged one ends early, which stands in its stats.

    Raises InputError for a list of URLs that has no such column.
    """
    stats, bad, near = FileStats(), BadLines(), Counter[str]()
    rejects = Rejects(task.file, bad)
    find = _found_in_list if task.source == "urls" else _found_in_dump
    found = tuple(find(task, rejects, stats, near))
    return FileSurvey(task.file, stats, bad, found, near)


def survey_files(
    label: str, function: Callable[[SurveyTask], FileSurvey], tasks: Sequence[SurveyTask], options: RunOptions
) -> list[FileSurvey]:
    """Run a function over files, show how many of their bytes are read, and return the results in their order."""
    progress = options.progress
    total = sum(storage.size_bytes(task.file.path) for task in tasks)
    finishing = contextlib.closing(options.executor.map(function, tasks, None, progress.advance, item_name))
    with show_progress(progress, label, total, "bytes"), finishing as finished:
        done = {task.name: result for task, result in finished}
    return [done[task.name] for task in tasks]


def require_files_source(config: ScrapeConfig, flag: str) -> None:
    """Raise UsageError where the submissions would come from an API, which a command that only reads does not ask."""
    if not config.needs_files:
        raise UsageError(
            f"{flag} reads files, and --source {config.source} asks an API; scrape first, then name the "
            "listing-NNNNN.ndjson.zst that it keeps as a dump"
        )


def _found_in_dump(
    task: SurveyTask, rejects: Rejects, stats: FileStats, near: Counter[str]
) -> Iterator[FoundSubmission]:
    for lines in counted_lines(task.file, rejects, stats):
        if task.url is not None:
            rows = rows_of_urls(lines, (task.url, *task.near))
            for row in rows.pop(task.url, []):
                yield FoundSubmission(task.file.label, lines.first_line + row, lines.submission(row))
            near.update({url: len(each) for url, each in rows.items()})


def rows_of_urls(lines: Lines, urls: Collection[str]) -> dict[str, list[int]]:
    """Return the rows of the lines whose URL has one of some canonical forms, by that form.

    That of most URLs is known without Python, so that comparing bytes is enough.
    """
    rows = np.flatnonzero(lines.good & lines.has_url)
    found: dict[str, list[int]] = {}
    for plain in (plain_urls, simplified_urls):
        forms = plain(lines, rows)
        for url in urls:
            if same := _rows_of_form(forms, url.encode()):
                found.setdefault(url, []).extend(same)
        rows = np.setdiff1d(rows, forms.rows, assume_unique=True)
    for row in rows.tolist():
        if (url_of_row := _canonical(lines.submission(row))) in urls:
            found.setdefault(str(url_of_row), []).append(row)
    return {url: sorted(each) for url, each in found.items()}


def _rows_of_form(urls: PlainUrls, wanted: bytes) -> list[int]:
    """Return the rows whose URL has these bytes: of that length, then of these last bytes, then of all."""
    ends = urls.spans[:, 1]
    may_be = np.flatnonzero(ends - urls.spans[:, 0] == len(wanted))
    for back, byte in enumerate(reversed(wanted[-_COMPARED_BYTES:]), 1):
        may_be = may_be[urls.array[ends[may_be] - back] == byte]
    return [int(urls.rows[at]) for at in may_be.tolist() if urls.array[slice(*urls.spans[at])].tobytes() == wanted]


def _found_in_list(
    task: SurveyTask, rejects: Rejects, stats: FileStats, near: Counter[str]
) -> Iterator[FoundSubmission]:
    for number, submission in enumerate(counted_urls(task.file, task.url_column, rejects, stats), 1):
        if task.url is not None:
            url = _canonical(submission)
            if url == task.url:
                yield FoundSubmission(task.file.label, number, submission)
            elif url in task.near:
                near[str(url)] += 1


def _canonical(submission: RawSubmission) -> str | None:
    return None if submission.url is None else canonical_url(submission.url)


def near_urls(url: str) -> tuple[str, ...]:
    """Return the canonical URLs that differ from one only in the scheme, `www.`, or a slash at the end of the path."""
    parts = urlsplit(url)
    found: dict[str, None] = {}
    for scheme, www, slash in itertools.product(("http", "https"), ("", "www."), ("", "/")):
        host = www + parts.netloc.removeprefix("www.")
        near = canonical_url(
            urlunsplit((scheme, host, parts.path.removesuffix("/") + slash, parts.query, parts.fragment))
        )
        if near is not None and near != url:
            found[near] = None
    return tuple(found)
