"""Reads source files without writing anything: what each contains, and which of its submissions have a given URL."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines import storage
from pipelines.algorithms.web.urls import canonical_url, near_urls
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.progress import show_progress
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.reading import Rejects, count_submissions
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.stage import open_sources
from pipelines.stages.scrape.submission import Submission
from pipelines.stages.scrape.url_source import count_urls


@dataclasses.dataclass(frozen=True)
class SurveyContext:
    """How files are read, and the canonical URL to find, if any; submissions of URLs `near` it are counted."""

    source: str
    url_column: str
    url: str | None = None
    near: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Match:
    """A submission and its line from 1; in a list of URLs its number among the URLs."""

    file: str
    line: int
    submission: Submission


class BadLines:
    """Counts bad lines by reason and keeps the first."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, Any] | None = None

    def write(self, record: Any) -> None:
        """Add a row of REJECT_SCHEMA."""
        self.reasons[record["reason"]] += 1
        self.first = self.first or record


@dataclasses.dataclass(frozen=True)
class FileSurvey:
    """What one file contains: its counts, its bad lines, the matching submissions, and the counts of near URLs."""

    file: SourceFile
    stats: FileStats
    bad: BadLines
    matches: tuple[Match, ...]
    near: Counter[str]


def survey_dumps(
    label: str, config: ScrapeConfig, url: str | None, *, dumps: Sequence[str], output: str, options: RunOptions
) -> list[FileSurvey]:
    """Read all files with a progress bar and return their surveys in order; `url` is canonical.

    Standard input is stored next to `output` meanwhile. Raises InputError for a list of URLs without the column.
    """
    with open_sources(config, dumps, output) as files:
        near = () if url is None else near_urls(url)
        context = SurveyContext(config.source, config.url_column, url, near)
        progress = options.progress
        total = sum(storage.size_bytes(file.path) for file in files)
        surveys = options.executor.map(survey_file, files, context, progress.advance, lambda file: file.label)
        with show_progress(progress, f"{label}: read", total, "bytes"), contextlib.closing(surveys) as finished:
            by_label = {file.label: survey for file, survey in finished}
    return [by_label[file.label] for file in files]


def survey_file(file: SourceFile, context: SurveyContext) -> FileSurvey:
    """Read one file; a damaged one ends early, which its stats say."""
    stats, bad, near = FileStats(), BadLines(), Counter[str]()
    rejects = Rejects(file, bad)
    matches = []
    for line, submission in _numbered_submissions(file, context, rejects, stats):
        if context.url is not None and submission.url is not None:
            url = canonical_url(submission.url)
            if url == context.url:
                matches.append(Match(file.label, line, submission))
            elif url in context.near:
                near[str(url)] += 1
    return FileSurvey(file=file, stats=stats, bad=bad, matches=tuple(matches), near=near)


def _numbered_submissions(
    file: SourceFile, context: SurveyContext, rejects: Rejects, stats: FileStats
) -> Iterator[tuple[int, Submission]]:
    if context.source == "urls":
        return enumerate(count_urls(file, context.url_column, rejects, stats), 1)
    blocks = count_submissions(file, rejects, stats)
    return itertools.chain.from_iterable(zip(*block, strict=True) for block in blocks)


def check_files_source(config: ScrapeConfig, flag: str) -> None:
    """Raise UsageError if the submissions would come from an API, which a command that only reads does not query."""
    if not config.needs_files:
        raise UsageError(
            f"{flag} reads files, and --source {config.source} queries an API; scrape first, then name the "
            "listing-NNNNN.ndjson.zst that it keeps as a dump"
        )
