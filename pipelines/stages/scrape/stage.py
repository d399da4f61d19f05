"""Turns Reddit's submissions into links: one row per canonical URL, merged from all of its submissions."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.web.urls import CANONICAL_RULES, public_suffix_version
from pipelines.engine.manifest import NEXT, has_manifest
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.engine.stage import GROWS_BY_FILES
from pipelines.errors import InputError, UsageError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.removals import read_removals
from pipelines.stages.scrape import arctic_shift, reddit_api
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.decision import SubmissionFilter, make_filter, resolve_config, subreddit_names
from pipelines.stages.scrape.merge import MergeContext, merge_bucket
from pipelines.stages.scrape.reports import (
    FILE_SCHEMA,
    KNOWN_MONTHS,
    MONTH_SCHEMA,
    FileStats,
    make_month_reports,
    name_late_months,
    unusable_months,
    write_list,
)
from pipelines.stages.scrape.scores import SCORE_SCHEMA, refresh_scores
from pipelines.stages.scrape.sources import ReadContext, SourceFile, open_sources, partition_file, read_stats
from pipelines.stages.scrape.submission import REJECT_SCHEMA

SCORE_INPUT = "refreshed scores"
# The submissions of every file, kept next to the links, so that a further file is added without reading the others.
# The manifest does not list them: they are not part of the result, and the folder can be deleted.
_PARTITIONS = "partitions"
STAGE = Stage("scrape", 5, (f"{_PARTITIONS}/",), grows=(GROWS_BY_FILES,))

_MAX_SHOWN = 5
# The phases whose tasks read the results of all files.
_GLOBAL_PHASES = ("merge", "lists")
_SUBREDDIT = re.compile(r"[A-Za-z0-9_]+(?:[+-][A-Za-z0-9_]+)*")  # all-news and a+b are listings of several


def scrape(config: ScrapeConfig, *, dumps: Sequence[str], output: str, options: RunOptions) -> Summary:
    """Write the links of dumps, of lists of URLs or of an API's listings as `links-N.parquet`.

    `dumps` are files, folders or globs, `-` for standard input; none for the APIs. Records in are submissions (lines),
    records out are links. Lists alongside the links: `rejects` (lines that are not a submission), `files` and `months`.
    Raises InputError for files that are damaged or contain no submissions and for months whose scores were recorded too
    early; it names them. Paper, section 2.1.
    """
    config = resolve_config(config)
    if not config.needs_files:
        _check_api_options(config, dumps)
    if "praw" in (config.source, config.refresh_scores) and (options.overwrite or not has_manifest(output)):
        reddit_api.connect()  # raises UsageError without PRAW or credentials: now, not after hours of reading
    filter = make_filter(config)
    with contextlib.ExitStack() as stack:
        note = options.progress.note
        files = stack.enter_context(open_sources(config, dumps, output, note)) if config.needs_files else []
        rules, shard_inputs = run_inputs(config, filter, files)
        run = stack.enter_context(
            stage_run(
                STAGE,
                config,
                inputs=rules,
                output=output,
                options=options,
                shard_inputs=shard_inputs,
                global_phases=_GLOBAL_PHASES,
            )
        )
        was_finished = run.finished
        if not was_finished:
            _write_links(run, config, filter, files or _fetch_listings(run, config, filter))
        summary = run.finish()
        if was_finished:  # repeat the warnings
            if count := summary.extra.get("damaged_files"):
                run.note(f"using the readable part of {count:,} damaged files; see files-00000.parquet")
            if count := summary.extra.get("months_with_fresh_scores"):
                run.note(f"{count:,} months have scores recorded at ingestion; see months-00000.parquet")
        return summary


def _check_api_options(config: ScrapeConfig, dumps: Sequence[str]) -> None:
    """Raise UsageError for files although the source is an API, and for options that it cannot use."""
    if dumps:
        raise UsageError(f"--source {config.source} reads an API and takes no files; omit them")
    for name in subreddit_names(config):
        if not _SUBREDDIT.fullmatch(name):
            raise UsageError(f"--subreddit {name}: is not the name of a subreddit, such as python")
    (reddit_api if config.source == "praw" else arctic_shift).check_options(config)


def run_inputs(
    config: ScrapeConfig, filter: SubmissionFilter, files: Sequence[SourceFile]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fingerprints of the rules, which are data and not options but decide the result, and of the files.

    A service of scores counts as a file: what was read without it stays valid.
    """
    rules = {
        "months with scores at ingestion": storage.sha256_of(KNOWN_MONTHS),
        f"profile {filter.profile.name}": filter.profile.fingerprint,
        "canonical URLs": f"rules-{CANONICAL_RULES}",
        "public suffixes": public_suffix_version(),
    }
    scores = {SCORE_INPUT: config.refresh_scores} if config.refresh_scores else {}
    return rules, {file.label: file.fingerprint for file in files} | scores


def _fetch_listings(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter) -> list[SourceFile]:
    """Request the listings of an API that are not stored yet; return those that contain submissions.

    Raises InputError if none does, if the API refuses, or does not respond after several attempts.
    """
    if config.source == "praw":
        entries = reddit_api.fetch_listings(run, config)
    else:
        entries = arctic_shift.fetch_listings(run, config, filter)
    listings = [entry.files[0] for entry in entries if entry.counts["listed_submissions"]]
    if not listings:
        run.discard()
        raise InputError(
            f"--source {config.source}: no submissions of {', '.join(config.subreddit or config.host)}; "
            "check the name and the dates"
        )
    return [SourceFile(file.name, storage.join(run.output, file.name), file.sha256) for file in listings]


def _write_links(run: StageRun, config: ScrapeConfig, filter: SubmissionFilter, files: list[SourceFile]) -> None:
    """Read the files, check them and their months, fetch scores if necessary, and merge the submissions to links."""
    context = ReadContext(config, filter, run.output)
    run.map(
        partition_file,
        files,
        context,
        phase="read",
        work=True,
        unit="bytes",
        cost=lambda file: file.size_bytes,
        keep=_PARTITIONS if config.keep_partitions and config.needs_files else None,
        is_current=lambda file: _is_current(file, run.output),
    )
    stats = read_stats(files, run.output)
    _check_damage(run, config, files, stats)
    reports = make_month_reports([(file.label, stat) for file, stat in zip(files, stats, strict=True)], config.source)
    for note in name_late_months([report["month"] for report in reports], filter):
        run.note(note)
    unusable = unusable_months(reports, filter)
    _check_months(run, config, unusable)
    bucket_files = [file.work_file("submissions.buckets") for file in files]
    score_files: list[str] | None = None
    if config.refresh_scores and unusable:
        stats, bucket_files, score_files = refresh_scores(run, files, list(unusable), context)
    kept = sum(stat.kept for stat in stats)
    corpus = storage.parent(run.output.removesuffix(f"/{NEXT}"))
    run.map(
        merge_bucket,
        range(config.shards),
        MergeContext(tuple(bucket_files), filter.karma, filter.min_link_score, run.output, read_removals(corpus)),
        name="links-{:05d}".format,
        phase="merge",
        total=kept,
        unit="submissions",
    )

    def write_lists() -> TaskResult:
        """Write the lists, and return the funnel of the reading: records in and drops before the merge."""
        file_rows = [stat.row(file.label) for file, stat in zip(files, stats, strict=True)]
        lists = [
            ("rejects", _read_all(run.output, [file.work_file("rejects.parquet") for file in files]), REJECT_SCHEMA),
            ("files", [pa.RecordBatch.from_pylist(file_rows, FILE_SCHEMA)], FILE_SCHEMA),
            ("months", [pa.RecordBatch.from_pylist(reports, MONTH_SCHEMA)], MONTH_SCHEMA),
        ]
        counts = {"damaged_files": sum(bool(stat.damage) for stat in stats), "months_with_fresh_scores": len(unusable)}
        if score_files is not None:
            lists.append(("scores", _read_all(run.output, score_files), SCORE_SCHEMA))
            counts["refreshed_scores"] = sum(stat.fetched for stat in stats)
        return TaskResult(
            records_in=sum(stat.lines for stat in stats),
            dropped=sum((stat.dropped for stat in stats), Counter(bad_line=sum(stat.bad_lines for stat in stats))),
            counts={"kept_submissions": kept} | {name: count for name, count in counts.items() if count},
            files=tuple(write_list(run.output, *content) for content in lists),
        )

    run.once("lists", write_lists)


def _read_all(output: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for name in names:
        yield from shards.read_batches(storage.join(output, name))


def _is_current(file: SourceFile, output: str) -> bool:
    """Return whether a file has the bytes that were read; a damaged one may have been repaired since.

    Large files are identified by samples of their bytes, which need not show a repair.
    """
    [stats] = read_stats([file], output)
    return not stats.damage or stats.sha256 == storage.sha256_of(file.path)


def _check_damage(run: StageRun, config: ScrapeConfig, files: Sequence[SourceFile], stats: Sequence[FileStats]) -> None:
    """Raise InputError for damaged files, unless they may be skipped."""
    problems = [problem for file, stat in zip(files, stats, strict=True) if (problem := stat.problem(file.shown))]
    if problems and not config.skip_damaged:
        for problem in problems if len(problems) > 1 else []:
            run.note(problem)
        if not any(stat.kept for stat in stats):
            run.discard()  # so that the next run can have other options
        kind = "lists of URLs" if config.source == "urls" else "dumps of submissions"
        several = f"{len(problems):,} files are damaged or not {kind} (see above)"
        message, them, their = (problems[0], "it", "its") if len(problems) == 1 else (several, "them", "their")
        others = " (the other files are not read again)" if len(files) > len(problems) else ""
        has_lines = others or any(stat.bad_lines < stat.lines for stat in stats)
        skip = f", or use {their} readable part with --skip-damaged" if has_lines else ""
        raise InputError(f"{message}; replace {them} and re-run{others}{skip}")
    for problem in problems:
        run.note(f"{problem}; the readable part is used")


def _check_months(run: StageRun, config: ScrapeConfig, unusable: Mapping[str, str]) -> None:
    """Raise InputError for months whose scores were recorded at ingestion, unless they are accepted or re-fetched."""
    problems = [f"{month}: {problem}" for month, problem in unusable.items()]
    if config.refresh_scores or not problems:
        return
    if not config.accept_fresh_scores:
        more = f"; and {plural(len(problems) - _MAX_SHOWN, 'more month')}" if len(problems) > _MAX_SHOWN else ""
        raise InputError(
            f"the scores of some months look recorded at ingestion, so that a minimum of {config.min_score} points "
            f"keeps almost nothing: {'; '.join(problems[:_MAX_SHOWN])}{more}. Re-fetch them with --refresh-scores "
            "arctic-shift (or praw), exclude the months with --before or --after, or use --accept-fresh-scores"
        )
    for problem in problems:
        run.note(f"{problem}; accepted")
