"""The files of a run, and the first phase: one task per file filters its submissions and writes their links by bucket.

A file is a dump, a list of URLs, or a listing of an API, which is stored in the format of the dumps. The order of the
files does not depend on that of the arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import zstandard

from pipelines import progress, storage
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.journal import JOURNAL, WORK
from pipelines.engine.manifest import MANIFEST_FILE, FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import DamagedFileError, InputError, UsageError
from pipelines.records import shards
from pipelines.records.buckets import write_buckets
from pipelines.records.shards import ColumnError, MissingColumnError
from pipelines.records.standard_input import STANDARD_INPUT, spool_standard_input
from pipelines.records.url_lists import (
    DEFAULT_COLUMN,
    JSON_SUFFIXES,
    PLAIN_SUFFIX,
    TABLE_SUFFIXES,
    URL_LIST_SUFFIXES,
    BadRow,
    UrlListError,
    read_urls,
)
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.decision import Link, SubmissionFilter
from pipelines.stages.scrape.merge import SUBMISSION_SCHEMA, batch_buckets, submission_batch
from pipelines.stages.scrape.reports import FileStats, month_span
from pipelines.stages.scrape.submission import REJECT_SCHEMA, Rejects, Submission, read_submissions, read_table
from pipelines.storage.compression import SUFFIXES, open_decompressed, strip_compression

_SPOOL_FILE = "stdin.ndjson.zst"
# A task's name is part of a file's name, which may have 255 bytes.
_SHOWN_CHARACTERS = 40
# Waiting rows fragment the memory of decoded lines: with 4,096 of them, reading takes 1.1 to 1.2 times as long.
_BATCH_ROWS = 256
# What a file is for that has no submissions, by its first character.
_HINTS = {"<": "a web page needs `webtext extract`", "{": "texts need no links: use `webtext dedup`"}


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """One file to read; `label` names it in the results, which must not contain paths.

    Submissions of its `unscored_months` (YYYY-MM) are kept apart, whatever their scores are; `scored_by` is the service
    whose scores they get. Work files are named by the content of the file, not by its position, so that they stay valid
    when another file is added or repaired.
    """

    label: str
    path: str
    fingerprint: str
    unscored_months: tuple[str, ...] = ()
    scored_by: str = ""

    @property
    def unscored(self) -> SourceFile:
        """The file before its submissions get scores."""
        return dataclasses.replace(self, scored_by="")

    @property
    def shown(self) -> str:
        """The name of the file in messages."""
        return "standard input" if self.label == _SPOOL_FILE else self.path

    @property
    def key(self) -> str:
        """A short name of the file's label and content, the unscored months, and the service."""
        key = hashlib.sha256(f"{self.label}\n{self.fingerprint}".encode()).hexdigest()[:16]
        if self.unscored_months:
            key += f"-unscored-{zlib.crc32(' '.join(self.unscored_months).encode()):08x}"
        return f"{key}-{self.scored_by}" if self.scored_by else key

    @property
    def name(self) -> str:
        """The name of the file's task: its label and what is read of it."""
        return f"{self.label[:_SHOWN_CHARACTERS]}-{self.key}"

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return storage.size_bytes(self.path)

    def work_file(self, kind: str) -> str:
        """Return the name of a work file of this file, such as `rejects.parquet`."""
        noun, _, suffix = kind.partition(".")
        return f"{WORK}/{noun}-{self.key}.{suffix}"


@contextlib.contextmanager
def open_sources(
    config: ScrapeConfig, dumps: Sequence[str], output: str, note: Callable[[str], None]
) -> Iterator[list[SourceFile]]:
    """Yield the files that `dumps` name; tables of other things in folders are noted.

    Inside the block, `-` is a temporary file that contains standard input, next to the output folder. It then has a
    fingerprint like any file: a killed run resumes if the same bytes come in again, and is refused otherwise. Raises
    UsageError if there are no files, or none that can have `--url-column`.
    """
    if not dumps:
        raise UsageError(
            f"no {'lists of URLs' if config.source == 'urls' else 'dumps'} were named; give files, folders or globs as "
            'arguments, or list them in webtext.toml: [scrape] dumps = ["PATH"]'
        )
    with contextlib.ExitStack() as stack:
        paths = list(dumps)
        if STANDARD_INPUT in paths:
            folder = output.rstrip("/") + "-stdin"
            stack.enter_context(folder_lock(folder))
            storage.remove_temporaries(folder)
            stack.callback(storage.remove, folder)
            spool = spool_standard_input(folder, _SPOOL_FILE)
            paths = [spool if path == STANDARD_INPUT else path for path in paths]
        files = find_files(paths, config.source, note)
        column = config.url_column
        if column != DEFAULT_COLUMN and all(strip_compression(file.path).endswith(PLAIN_SUFFIX) for file in files):
            raise UsageError(
                f"--url-column {column} has no effect on lists of one URL per line (.txt); omit it, or give a file of "
                "CSV, TSV, Parquet or JSON lines a name with that suffix"
            )
        yield files


def find_files(paths: Sequence[str], source: str, note: Callable[[str], None] = progress.note) -> list[SourceFile]:
    """Return the files that names, folders and globs stand for, in an order that does not depend on theirs.

    A file that is named is used whatever its name; of a folder or glob only files that look like a dump (or like a list
    of URLs); `note` gets a line for a table of something else. Raises InputError for a path without files.
    """
    unique = dict.fromkeys(file for path in paths for file in _expand(path, source, note))
    named = sorted((storage.basename(path), storage.content_fingerprint(path), path) for path in unique)
    seen = Counter[str]()
    files = []
    for name, fingerprint, path in named:
        seen[name] += 1
        files.append(SourceFile(name if seen[name] == 1 else f"{name}~{seen[name]}", path, fingerprint))
    return files


def _expand(path: str, source: str, note: Callable[[str], None]) -> list[str]:
    noun = "list of URLs" if source == "urls" else "file of submissions"
    if storage.exists(path) and not storage.is_folder(path):
        return [path]
    if storage.is_glob(path):
        candidates, problem = storage.glob(path), f"matches no {noun}"
    elif storage.is_folder(path):
        candidates, problem = _outside_stage_folders(storage.walk_files(path)), f"contains no {noun}"
    else:
        raise InputError(f"{path}: no such file or folder")
    files = [file for file in candidates if _is_input(file, source) and storage.is_file(file)]
    files = [file for file in files if source == "urls" or not _is_other_table(file, note)]
    if not files:
        raise InputError(f"{path}: {problem}")
    return files


def _outside_stage_folders(paths: list[str]) -> list[str]:
    """Return the files that are not in the folder of a stage, because a corpus may be next to its dumps."""
    folders = {path.rpartition("/")[0] for path in paths}
    unfinished = {folder.removesuffix(f"/{JOURNAL}") for folder in folders if folder.endswith(f"/{JOURNAL}")}
    stage_folders = unfinished | {folder for folder in folders if f"{folder}/{MANIFEST_FILE}" in paths}
    return [path for path in paths if not any(path.startswith(f"{folder}/") for folder in stage_folders)]


def _is_input(path: str, source: str) -> bool:
    """Return whether a file of a folder looks like a list of URLs, or like a dump."""
    name = storage.basename(path)
    content_name = strip_compression(name)
    if name.startswith("."):
        return False
    if source == "urls":
        return content_name.endswith(URL_LIST_SUFFIXES)
    # Dumps of comments are next to those of submissions, by month (RC_2017-11) or by subreddit (python_comments.zst).
    if name.startswith("RC_") or content_name.endswith("_comments"):
        return False
    return name.endswith((*SUFFIXES, *JSON_SUFFIXES, *TABLE_SUFFIXES)) or (name.startswith("RS_") and "." not in name)


def _is_other_table(path: str, note: Callable[[str], None]) -> bool:
    """Return whether a file is a table without the columns of submissions; one that cannot be read is read later."""
    try:
        next(read_table(path, Rejects("")) if _is_table(path) else iter(()), None)
    except InputError as error:
        if isinstance(error, MissingColumnError):
            note(f"{error}; ignored")
            return True
    return False


def _is_table(path: str) -> bool:
    return strip_compression(path).endswith(TABLE_SUFFIXES)


def write_listing(folder: str, index: int, lines: Iterable[bytes]) -> TaskResult:
    """Store the response of an API, which changes over time, as `listing-N.ndjson.zst`, which every rerun reads."""
    name = shards.shard_name("listing", index, "ndjson.zst")
    count = 0
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    with storage.atomic_write(storage.join(folder, name)) as stream:
        for line in lines:
            stream.write(compressor.compress(line))
            count += 1
        stream.write(compressor.flush())
    entry = FileEntry(name, stream.size_bytes, stream.checksum)
    return TaskResult(counts={"listed_submissions": count}, files=(entry,))


@dataclasses.dataclass(frozen=True)
class ReadContext:
    """What the tasks of all source files share."""

    config: ScrapeConfig
    filter: SubmissionFilter
    output: str


def partition_file(file: SourceFile, context: ReadContext) -> TaskResult:
    """Read a source file and write its submissions by bucket, its bad lines, and its counts.

    The counts of the result belong to this phase; those of the stage are computed from the stats at the end.
    """
    stats, output, filter = FileStats(), context.output, context.filter
    spans = [month_span(month) for month in file.unscored_months]
    unscored_filter = filter.without_score()
    with contextlib.ExitStack() as stack:
        rejected = stack.enter_context(shards.write_shard(output, file.work_file("rejects.parquet"), REJECT_SCHEMA))
        path = storage.join(output, file.work_file("submissions.buckets"))
        written = stack.enter_context(write_buckets(path, SUBMISSION_SCHEMA))
        kept = pending = _RowBuffer(lambda batch: written.write(batch, batch_buckets(batch, context.config.shards)))
        parquet = [rejected]
        if spans:
            waiting = shards.write_shard(output, file.work_file("pending.parquet"), SUBMISSION_SCHEMA)
            parquet.append(stack.enter_context(waiting))
            pending = _RowBuffer(parquet[-1].write_batch)
        rejects = Rejects(file.label, rejected.write)
        for _, batch in read_file(file, context.config, stats, rejects):
            if spans:
                is_pending = [any(start <= post.created_utc < end for start, end in spans) for post in batch]
                unscored = list(itertools.compress(batch, is_pending))
                batch = list(itertools.compress(batch, map(operator.not_, is_pending)))
                pending.add(unscored_filter.select(unscored, stats.dropped))
            stats.kept += kept.add(filter.select(batch, stats.dropped))
        kept.flush()
        pending.flush()
    if stats.damage:
        stats.sha256 = storage.sha256_of(file.path)
    entry = written.entry(file.work_file("submissions.buckets"))
    stats_entry = shards.write_file(output, file.work_file("stats.json"), stats.to_json())
    return TaskResult(files=(entry, *(shard.entry for shard in parquet), stats_entry))


class _RowBuffer:
    """Writes submissions in batches."""

    def __init__(self, write: Callable[[pa.RecordBatch], None]) -> None:
        self._write = write
        self._rows: list[Link] = []

    def add(self, rows: Sequence[Link]) -> int:
        """Add rows and return their number."""
        self._rows += rows
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()
        return len(rows)

    def flush(self) -> None:
        """Write the rows."""
        if self._rows:
            self._write(submission_batch(self._rows))
            self._rows = []


def read_stats(files: Sequence[SourceFile], output: str) -> list[FileStats]:
    """Return the counts of each file."""
    paths = [storage.join(output, file.work_file("stats.json")) for file in files]
    return [FileStats.from_json(storage.read_bytes(path)) for path in paths]


def read_file(
    file: SourceFile, config: ScrapeConfig, stats: FileStats, rejects: Rejects
) -> Iterator[tuple[Sequence[int], list[Submission]]]:
    """Yield the submissions of a file with their line numbers (of a list: their numbers), a few hundred at a time.

    They are counted in `stats`, and what cannot be read in `rejects`. A damaged file ends early; `stats` says so, and
    whether the file is not what it seems. Raises InputError, naming the file, if it lacks a column.
    """
    for numbers, submissions in _read_blocks(file, config, stats, rejects):
        stats.count(submissions)
        yield numbers, submissions
    stats.bad_lines = rejects.reasons.total()
    stats.lines += stats.bad_lines
    if stats.damaged_at is None and not stats.damage:
        first = rejects.first["text"].lstrip()[:1] if rejects.first else ""
        url_hint = "" if _is_table(file.path) else _HINTS.get(first, "a list of URLs needs --source urls")
        stats.damage = stats.implausibility(config.source, rejects.bad_time or url_hint)


def _read_blocks(
    file: SourceFile, config: ScrapeConfig, stats: FileStats, rejects: Rejects
) -> Iterator[tuple[Sequence[int], list[Submission]]]:
    if config.source == "urls" or _is_table(file.path):
        rows = _read_rows(file, config, stats, rejects)
        while block := list(itertools.islice(rows, _BATCH_ROWS)):
            yield [number for number, _ in block], [submission for _, submission in block]
        return
    with _damage_noted(file.path, stats), open_decompressed(file.path, report_bytes=True) as stream:
        yield from read_submissions(stream, rejects)


def _read_rows(
    file: SourceFile, config: ScrapeConfig, stats: FileStats, rejects: Rejects
) -> Iterator[tuple[int, Submission]]:
    """Yield the rows of a table of submissions, or the URLs of a list as submissions without id, score and time."""
    with _damage_noted(file.path, stats):
        if config.source != "urls":
            yield from read_table(file.path, rejects)
            return
        try:
            number = 0
            for url in read_urls(file.path, config.url_column, report_bytes=True):
                if isinstance(url, BadRow):
                    rejects.add(*url)
                else:
                    yield (number := number + 1), Submission(id="", created_utc=0, url=url, is_self=False)
        except ColumnError as error:
            raise InputError(f"{error} (set another one with --url-column)") from error


@contextlib.contextmanager
def _damage_noted(path: str, stats: FileStats) -> Iterator[None]:
    try:
        yield
    except DamagedFileError as error:
        stats.damaged_at, stats.damage = error.offset_bytes, error.reason
    except UrlListError as error:
        stats.damage = str(error.args[0]).removeprefix(f"{path}: ")
