"""Turns Reddit's submissions into links: one row per canonical URL, merged from all of its submissions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from pipelines import storage
from pipelines.algorithms.web.urls import CANONICAL_RULES, public_suffix_version
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.engine.stage import GROWS_BY_FILES
from pipelines.errors import InputError, UsageError
from pipelines.format import plural
from pipelines.stages.scrape.accounting import write_accounts
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.listings import check_listing_options, fetch_listings
from pipelines.stages.scrape.merge import MergeContext, merge_bucket
from pipelines.stages.scrape.month_reports import MonthReport, make_month_reports, unusable_months
from pipelines.stages.scrape.months import known_months_version
from pipelines.stages.scrape.partition import FileToRead, ReadContext, file_bytes, partition_file, read_stats
from pipelines.stages.scrape.partitions import PARTITIONS, keep_partitions, reuse_partitions
from pipelines.stages.scrape.refresh import refresh_scores
from pipelines.stages.scrape.scores import check_service
from pipelines.stages.scrape.sources import SourceFile, find_files, with_standard_input
from pipelines.stages.scrape.submission_filter import SubmissionFilter, make_filter, resolve_config
from pipelines.stages.scrape.url_source import check_url_column

STAGE = Stage("scrape", 2, (f"{PARTITIONS}/",), grows=(GROWS_BY_FILES,))
SCORE_INPUT = "refreshed scores"

_MAX_SHOWN = 5
# The phases whose tasks read the results of all files.
_GLOBAL_PHASES = ("merge", "lists")


def scrape(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the links of dumps, of lists of URLs or of an API's listings as `links-N.parquet`.

    `dumps` are files, folders or globs, `-` for standard input; none for the APIs. Records in are submissions (lines),
    records out are links. Lists alongside the links: `rejects` (lines that are not a submission), `files` and `months`.
    Raises InputError, by name, for files that are damaged or contain no submissions and for months whose scores were
    recorded too early. Paper, section 2.1.
    """
    config = resolve_config(config)
    if config.refresh_scores and (options.overwrite or not has_manifest(output)):
        check_service(config.refresh_scores)
    filter = make_filter(config)
    if not config.needs_files:
        check_listing_options(config, dumps)
        return _scrape(config, filter, files=None, output=output, options=options)
    with open_sources(config, dumps, output) as files:
        return _scrape(config, filter, files=files, output=output, options=options)


def _scrape(
    config: ScrapeConfig, filter: SubmissionFilter, files: list[SourceFile] | None, output: str, options: RunOptions
) -> Summary:
    """Write the links of files; without any, of the listings that an API returns."""
    inputs = {file.label: file.fingerprint for file in files or []} | score_input(config)
    with stage_run(
        STAGE,
        config,
        inputs=rule_inputs(filter),
        output=output,
        options=options,
        shard_inputs=inputs,
        global_phases=_GLOBAL_PHASES,
    ) as run:
        if not run.finished:
            _write_links(run, config, filter, fetch_listings(run, config, filter) if files is None else files)
        return _finish(run)


def _finish(run: StageRun) -> Summary:
    """Finish, and repeat the warnings of a result that was already complete."""
    was_finished = run.finished
    summary = run.finish()
    if was_finished:
        if count := summary.extra.get("damaged_files"):
            run.note(f"damaged files, of which the readable part is used: {count:,}, see files-00000.parquet")
        if count := summary.extra.get("months_with_fresh_scores"):
            run.note(f"months whose scores were recorded at ingestion: {count:,}, see months-00000.parquet")
    return summary


@contextlib.contextmanager
def open_sources(config: ScrapeConfig, dumps: Sequence[str], output: str) -> Iterator[list[SourceFile]]:
    """Yield the files that `dumps` name; standard input is stored next to `output` inside the block.

    Raises UsageError if there are none.
    """
    if not dumps:
        raise UsageError(
            "no dumps were named; give files, folders or globs as arguments, or list them in webtext.toml: "
            '[scrape] dumps = ["dumps/RS_2017-11.zst"]'
        )
    with with_standard_input(dumps, output) as paths:
        files = find_files(paths, config.source)
        check_url_column(config.url_column, files)
        yield files


def rule_inputs(filter: SubmissionFilter) -> dict[str, str]:
    """Return the fingerprints of the rules, which are data and not options, but also decide the result."""
    return {
        "months with scores at ingestion": known_months_version(),
        f"profile {filter.profile.name}": filter.profile.fingerprint,
        "canonical URLs": f"rules-{CANONICAL_RULES}",
        "public suffixes": public_suffix_version(),
    }


def score_input(config: ScrapeConfig) -> dict[str, str]:
    """Return where scores are re-fetched: part of the result, but not of what was read without it."""
    return {SCORE_INPUT: config.refresh_scores} if config.refresh_scores else {}


def _write_links(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter, sources: list[SourceFile]) -> None:
    files = [FileToRead(source) for source in sources]
    context = ReadContext(
        filter=filter, source=config.source, url_column=config.url_column, shards=config.shards, output=run.output
    )
    if run.earlier:
        reuse_partitions(run, files)
    _discard_repaired(run, files)
    entries = run.map(partition_file, files, context, phase="read", work=True, unit="bytes", cost=file_bytes)
    stats = read_stats(files, run.output)
    _check_damage(run, config, files, stats)
    reports = make_month_reports(
        [(item.file.label, stat) for item, stat in zip(files, stats, strict=True)], config.source
    )
    unusable = unusable_months(reports, filter)
    _check_months(run, config, unusable)
    work_files = [item.submissions_name for item in files]
    refreshed = None
    if config.refresh_scores and unusable:
        months = [report.month for report in unusable]
        refreshed = refresh_scores(run, config, files=files, stats=stats, months=months, context=context)
        files, stats, work_files = refreshed.files, refreshed.stats, refreshed.work_files
    kept = sum(stat.kept for stat in stats)
    merge_context = MergeContext(
        work_files=tuple(work_files), karma=filter.karma, min_score=filter.min_link_score, output=run.output
    )
    buckets = range(config.shards)
    run.map(
        merge_bucket, buckets, merge_context, name="links-{:05d}".format, phase="merge", total=kept, unit="submissions"
    )

    def write_lists() -> TaskResult:
        return write_accounts(
            run.output, files, stats=stats, reports=reports, fresh_months=len(unusable), refreshed=refreshed
        )

    run.once("lists", write_lists)
    if config.keep_partitions and config.needs_files:
        keep_partitions(run, entries)


def _discard_repaired(run: StageRun, files: list[FileToRead]) -> None:
    """Have damaged files read again whose bytes have changed.

    Large files are identified by samples of their bytes, which need not show a repair.
    """
    for item in files:
        if run.resumed_entry("read", item.name):
            (stats,) = read_stats([item], run.output)
            if stats.damage and stats.sha256 != storage.sha256_of(item.file.path):
                run.discard_entry("read", item.name)


def _check_damage(run: StageRun, config: ScrapeConfig, files: list[FileToRead], stats: list[FileStats]) -> None:
    """Raise InputError for damaged files, unless they may be skipped."""
    problems = [problem for item, stat in zip(files, stats, strict=True) if (problem := stat.problem(item.file.shown))]
    if problems and not config.skip_damaged:
        for problem in problems if len(problems) > 1 else []:
            run.note(problem)
        kind = "lists of URLs" if config.source == "urls" else "dumps of submissions"
        several = f"{len(problems):,} files are damaged or not {kind} (see above)"
        message = problems[0] if len(problems) == 1 else several
        raise InputError(
            f"{message}{'' if message.endswith('?') else '.'} Replace them and re-run (the other files are not read "
            "again), or use their readable part with --skip-damaged"
        )
    for problem in problems:
        run.note(f"{problem}; the readable part is used")


def _check_months(run: StageRun, config: ScrapeConfig, unusable: list[MonthReport]) -> None:
    """Raise InputError for months whose scores were recorded at ingestion, unless they are accepted or re-fetched."""
    problems = [f"{report.month}: {report.problem}" for report in unusable]
    if problems and not config.accept_fresh_scores and not config.refresh_scores:
        more = f"; and {plural(len(problems) - _MAX_SHOWN, 'more month')}" if len(problems) > _MAX_SHOWN else ""
        raise InputError(
            f"the scores of some months look recorded at ingestion, so that a minimum of {config.min_score} points "
            f"keeps almost nothing: {'; '.join(problems[:_MAX_SHOWN])}{more}. Re-fetch them with --refresh-scores "
            "arctic-shift (or praw), exclude the months with --before or --after, or use --accept-fresh-scores"
        )
    if config.accept_fresh_scores and not config.refresh_scores:
        for problem in problems:
            run.note(f"{problem}; accepted")
