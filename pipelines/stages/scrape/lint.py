"""Checks the months and files that a scrape would read, without writing anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.month_reports import MonthReport, make_month_reports, unusable_months
from pipelines.stages.scrape.submission_filter import make_filter
from pipelines.stages.scrape.survey import FileSurvey, check_files_source, survey_dumps


@dataclasses.dataclass(frozen=True)
class FileReport:
    """One file: its lines, its bad lines by reason with the first of them, and what is wrong with it.

    `damaged_at` is the offset in its compressed bytes, None if it is intact.
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
    """The months and files of some dumps, and those that a scrape with these options would refuse, with the reason."""

    months: tuple[MonthReport, ...]
    files: tuple[FileReport, ...]
    refused_files: tuple[str, ...]
    refused_months: tuple[str, ...]

    @property
    def refused(self) -> tuple[str, ...]:
        """All that a scrape would refuse."""
        return self.refused_files + self.refused_months

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "months": [month.row() for month in self.months],
            "files": [dataclasses.asdict(file) for file in self.files],
            "refused": list(self.refused),
        }


def lint(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> LintReport:
    """Read dumps and check their months and files as a scrape would; URLs are not filtered.

    `output` is only used to store standard input meanwhile. Raises UsageError for a source without months.
    """
    check_files_source(config, "--lint")
    if config.source == "urls":
        raise UsageError("--lint checks the months of dumps; lists of URLs (--source urls) have none")
    filter = make_filter(config)
    surveys = survey_dumps("lint", config, None, dumps=dumps, output=output, options=options)
    files = tuple(_file_report(survey) for survey in surveys)
    refused_files = () if config.skip_damaged else tuple(file.problem for file in files if file.problem)
    # A file without URLs is not a dump of submissions (perhaps of comments), so it says nothing about their months.
    counted = [survey for survey in surveys if survey.stats.has_url or config.skip_damaged]
    months = make_month_reports([(survey.file.label, survey.stats) for survey in counted], config.source)
    accepts_months = config.accept_fresh_scores or config.refresh_scores
    unusable = [] if accepts_months else unusable_months(months, filter)
    refused_months = tuple(f"{report.month}: {report.problem}" for report in unusable)
    return LintReport(tuple(months), files, refused_files, refused_months)


def _file_report(survey: FileSurvey) -> FileReport:
    stats = survey.stats
    return FileReport(
        file=survey.file.label,
        lines=stats.lines,
        bad_lines=stats.bad_lines,
        bad_reasons=dict(survey.bad.reasons.most_common()),
        first_bad=survey.bad.first,
        damaged_at=stats.damaged_at,
        damage=stats.damage or None,
        problem=stats.problem(survey.file.label),
    )
