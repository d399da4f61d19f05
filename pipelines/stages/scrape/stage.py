"""Turns Reddit's submissions into links: one row a canonical URL, with all that was said of it."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.algorithms.web.urls import CANONICAL_RULES, public_suffix_version
from pipelines.core import storage
from pipelines.core.errors import InputError, UsageError
from pipelines.core.manifest import has_manifest
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, stage_run
from pipelines.stages.scrape.accounting import read_stats, write_accounts
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.linter import MonthReport, month_reports, unusable_months
from pipelines.stages.scrape.listings import check_listing_options, fetch_listings
from pipelines.stages.scrape.merge import MergeTask, merge_bucket
from pipelines.stages.scrape.months import known_months_version
from pipelines.stages.scrape.partition import PartitionTask, file_bytes, partition_file
from pipelines.stages.scrape.refresh import refresh_scores
from pipelines.stages.scrape.scores import check_service
from pipelines.stages.scrape.selection import Selection, make_selection, resolved
from pipelines.stages.scrape.sources import SourceFile, find_files, with_standard_input
from pipelines.stages.scrape.url_lists import check_url_column

STAGE = Stage("scrape", 2)
SCORE_INPUT = "refreshed scores"

_SHOWN = 5
# The phases whose tasks read what was made of all files.
_OF_ALL = ("merge", "lists")


def scrape(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the links of dumps, of lists of URLs or of an API's listings as `links-N.parquet`.

    `dumps` are files, folders or globs, `-` for standard input; none for the APIs. Records in are submissions (lines),
    records out are links. Beside them: `rejects` lists the lines that hold no submission, `files` and `months` what
    each file and month held. Raises InputError, by name, for files that are damaged or hold no submissions and for
    months whose scores were taken too early. Paper, section 2.1.
    """
    config = resolved(config)
    if config.refresh_scores and (options.overwrite or not has_manifest(output)):
        check_service(config.refresh_scores)
    selection = make_selection(config)
    if not config.needs_files:
        check_listing_options(config, dumps)
        return _scrape(config, selection, None, output, options)
    with with_standard_input(named_dumps(dumps), output) as paths:
        files = find_files(paths, config.source)
        check_url_column(config.url_column, files)
        return _scrape(config, selection, files, output, options)


def _scrape(
    config: ScrapeConfig, selection: Selection, files: list[SourceFile] | None, output: str, options: RunOptions
) -> Summary:
    """Make the links of files; without any, of the listings that an API gives."""
    parts = {file.label: file.fingerprint for file in files or []} | score_input(config)
    with stage_run(
        STAGE, config, rule_inputs(selection), output, options, shard_inputs=parts, global_phases=_OF_ALL
    ) as run:
        if not run.finished:
            found = fetch_listings(run, config, selection) if files is None else files
            _make_links(run, config, selection, found)
        return _finish(run)


def _finish(run: StageRun) -> Summary:
    """Finish, and say again of a result what was let pass when it was made."""
    made_before = run.finished
    summary = run.finish()
    if made_before:
        if count := summary.extra.get("damaged_files"):
            run.note(f"damaged files, used as far as they could be read: {count:,}, see files-00000.parquet")
        if count := summary.extra.get("months_with_fresh_scores"):
            run.note(f"months whose scores were taken at ingestion: {count:,}, see months-00000.parquet")
    return summary


def named_dumps(dumps: Sequence[str]) -> Sequence[str]:
    """Return the dumps; raise UsageError where none was named."""
    if not dumps:
        raise UsageError(
            "no dumps were named; give files, folders or globs as arguments, or list them in webtext.toml: "
            '[scrape] dumps = ["dumps/RS_2017-11.zst"]'
        )
    return dumps


def rule_inputs(selection: Selection) -> dict[str, str]:
    """Return the fingerprints of the rules that decide the result beside the options."""
    # The rules, the form of URLs and what a domain is are data, not options, but they decide the result all the same.
    return {
        "months with scores at ingestion": known_months_version(),
        f"profile {selection.profile.name}": selection.profile.fingerprint,
        "canonical URLs": f"rules-{CANONICAL_RULES}",
        "public suffixes": public_suffix_version(),
    }


def score_input(config: ScrapeConfig) -> dict[str, str]:
    """Return where scores are fetched anew: a part of the result, yet what was read before stays good without it."""
    return {SCORE_INPUT: config.refresh_scores} if config.refresh_scores else {}


def _make_links(run: StageRun, config: ScrapeConfig, selection: Selection, files: list[SourceFile]) -> None:
    work = storage.basename(run.work)
    tasks = [
        PartitionTask(file, selection, config.source, config.url_column, config.shards, run.output, work)
        for file in files
    ]
    _forget_repaired(run, tasks)
    run.map(partition_file, tasks, phase="read", work=True, unit="bytes", cost=file_bytes)
    stats = read_stats(tasks)
    _refuse_damaged(run, config, tasks, stats)
    reports = month_reports([(task.file.label, each) for task, each in zip(tasks, stats, strict=True)], config.source)
    fresh = unusable_months(reports, selection)
    _refuse_fresh(run, config, fresh)
    work_files = [task.submissions_name for task in tasks]
    refreshed = None
    if config.refresh_scores and fresh:
        refreshed = refresh_scores(run, config, tasks, stats, [report.month for report in fresh])
        tasks, stats, work_files = refreshed.tasks, refreshed.stats, refreshed.work_files
    kept = sum(each.kept for each in stats)
    buckets = [
        MergeTask(bucket, tuple(work_files), selection.karma, selection.least_link_score, run.output, work)
        for bucket in range(config.shards)
    ]
    run.map(merge_bucket, buckets, phase="merge", total=kept, unit="submissions")
    run.once("lists", lambda: write_accounts(run.output, tasks, stats, reports, len(fresh), refreshed))


def _forget_repaired(run: StageRun, tasks: list[PartitionTask]) -> None:
    """Have damaged files read again whose bytes are other ones now.

    Large files are told apart by samples of their bytes, which need not show what was mended.
    """
    for task in tasks:
        if run.resumed_entry("read", task.name):
            (stats,) = read_stats([task])
            if stats.damage and stats.sha256 != storage.sha256_of(task.file.path):
                run.discard_entry("read", task.name)


def _refuse_damaged(run: StageRun, config: ScrapeConfig, tasks: list[PartitionTask], stats: list[FileStats]) -> None:
    """Raise InputError for damaged files, unless they may be skipped; what was read of them stays apart till then."""
    found = [problem for task, each in zip(tasks, stats, strict=True) if (problem := each.problem(task.file.shown))]
    if found and not config.skip_damaged:
        for problem in found if len(found) > 1 else []:
            run.note(problem)
        kind = "lists of URLs" if config.source == "urls" else "dumps of submissions"
        several = f"{len(found):,} files are damaged, or no {kind} (above)"
        what = found[0] if len(found) == 1 else several
        raise InputError(
            f"{what}{'' if what.endswith('?') else '.'} Put good files in their place and run again (the others are "
            "not read again), or use what could be read of them with --skip-damaged"
        )
    for problem in found:
        run.note(f"{problem}; what could be read of it is used")


def _refuse_fresh(run: StageRun, config: ScrapeConfig, fresh: list[MonthReport]) -> None:
    """Raise InputError for months whose scores were taken at ingestion, unless they are accepted or fetched again."""
    found = [f"{report.month}: {report.problem}" for report in fresh]
    if found and not config.accept_fresh_scores and not config.refresh_scores:
        more = f"; and {len(found) - _SHOWN} more months" if len(found) > _SHOWN else ""
        raise InputError(
            f"the scores of some months look taken at ingestion, so that a limit of {config.min_score} points keeps "
            f"almost nothing: {'; '.join(found[:_SHOWN])}{more}. Fetch them again with --refresh-scores arctic-shift "
            "(or praw), leave the months out with --before or --after, or go on with --accept-fresh-scores"
        )
    if config.accept_fresh_scores and not config.refresh_scores:
        for line in found:
            run.note(f"{line}; accepted as they are")
