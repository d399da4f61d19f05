"""Lists of URLs as a source: their URLs become submissions without id, score and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipelines.errors import DamagedFileError, InputError, UsageError
from pipelines.records.url_lists import DEFAULT_COLUMN, PLAIN_SUFFIX, BadRow, ColumnError, UrlListError, read_urls
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.reading import Rejects
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import Submission
from pipelines.storage.compression import strip_compression


def check_url_column(column: str, files: Iterable[SourceFile]) -> None:
    """Raise UsageError for a column that none of the files can have."""
    if column != DEFAULT_COLUMN and all(strip_compression(file.path).endswith(PLAIN_SUFFIX) for file in files):
        raise UsageError(
            f"--url-column {column} has no effect on lists of one URL per line (.txt); omit it, or give a file of "
            "CSV, TSV, Parquet or JSON lines a name with that suffix"
        )


def count_urls(file: SourceFile, column: str, rejects: Rejects, stats: FileStats) -> Iterator[Submission]:
    """Yield the URLs of a list as submissions and count them in `stats`; rows that cannot be read go to `rejects`.

    Problems of the file as a whole are noted in `stats`: it is damaged and ends early, it is empty, or more than 1% of
    its rows are bad. Raises InputError, naming the file, if it has no such column.
    """
    try:
        for url in read_urls(file.path, column, report_bytes=True):
            if isinstance(url, BadRow):
                rejects.add(*url)
            else:
                stats.lines += 1
                yield Submission(id="", created_utc=0, url=url, is_self=False)
    except ColumnError as error:
        raise InputError(f"{error} (set another one with --url-column)") from error
    except DamagedFileError as error:
        stats.damaged_at, stats.damage = error.offset_bytes, error.reason
    except UrlListError as error:
        stats.damage = error.problem
    stats.bad_lines = rejects.count
    stats.lines += rejects.count
    stats.too_many_bad = rejects.too_many(stats.lines)
    if stats.too_many_bad and not stats.damage:
        stats.damage = (
            f"{stats.bad_lines:,} of its {stats.lines:,} lines cannot be read (more than 1%); is it a list of URLs?"
        )
