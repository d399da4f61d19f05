"""Judges the months and files that a scrape would read, without writing anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipelines.core.errors import UsageError
from pipelines.core.run import RunOptions
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.linter import MonthReport, month_reports, unusable_months
from pipelines.stages.scrape.selection import make_selection
from pipelines.stages.scrape.sources import find_files, with_standard_input
from pipelines.stages.scrape.stage import named_dumps
from pipelines.stages.scrape.survey import FileSurvey, SurveyTask, require_files_source, survey_file, survey_files


@dataclasses.dataclass(frozen=True)
class FileReport:
    """One file: its lines, its bad lines by reason with the first of them, and what is wrong with it.

    `damaged_at` is the offset in its compressed bytes, None where it is sound.
    """

    file: str
    lines: int
    bad_lines: int
    bad_reasons: dict[str, int]
    first_bad: dict[str, Any] | None
    damaged_at: int | None
    damage: str | None
    problem: str | None


@dataclasses.dataclass(frozen=True)
class LintReport:
    """The months and files of some dumps, and those that a scrape with these options would stop at, with the reason."""

    months: tuple[MonthReport, ...]
    files: tuple[FileReport, ...]
    refused_files: tuple[str, ...]
    refused_months: tuple[str, ...]

    @property
    def refused(self) -> tuple[str, ...]:
        """All that a scrape would stop at."""
        return self.refused_files + self.refused_months

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "months": [month.row() for month in self.months],
            "files": [dataclasses.asdict(file) for file in self.files],
            "refused": list(self.refused),
        }


def lint(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> LintReport:
    """Read dumps and judge their months and files as a scrape would; no URL is judged.

    `output` is only where standard input lies meanwhile. Raises UsageError for a source that has no months.
    """
    require_files_source(config, "--lint")
    if config.source == "urls":
        raise UsageError("--lint judges the months of dumps; lists of URLs (--source urls) have none")
    selection = make_selection(config)
    with with_standard_input(named_dumps(dumps), output) as paths:
        tasks = [SurveyTask(file) for file in find_files(paths, config.source)]
        surveys = survey_files("lint: read", survey_file, tasks, options)
    files = tuple(_file_report(survey) for survey in surveys)
    refused = () if config.skip_damaged else tuple(file.problem for file in files if file.problem)
    # What has no URLs is no dump of submissions (as those of comments are none), and says nothing of their months.
    counted = [survey for survey in surveys if survey.stats.with_url or config.skip_damaged]
    months = month_reports([(survey.file.label, survey.stats) for survey in counted], config.source)
    unusable = (
        unusable_months(months, selection) if not config.accept_fresh_scores and not config.refresh_scores else []
    )
    return LintReport(tuple(months), files, refused, tuple(f"{report.month}: {report.problem}" for report in unusable))


def _file_report(survey: FileSurvey) -> FileReport:
    stats = survey.stats
    return FileReport(
        survey.file.label,
        stats.lines,
        stats.bad_lines,
        dict(survey.bad.reasons.most_common()),
        survey.bad.first,
        stats.damaged_at,
        stats.damage or None,
        stats.problem(survey.file.label),
    )
