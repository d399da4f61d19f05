"""Reads submissions from the lines of a dump, whatever month the lines are from, or from the rows of a table.

Lines that are not a submission are counted and listed, never skipped silently. What drifted from 2005 to today:
`created_utc` is a string in 2014 and 2015 and a float in some sources; `score`, `url` and `domain` are null in some
months; `name`, `promoted` and `is_self` come and go; from 2017 on a crosspost contains the post that it repeats, whose
URL is the one that counts; from 2020 on the URL of an edited post is in `url_overridden_by_dest`.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.records.documents import parse_instant
from pipelines.records.reader import TABLES, BadRecord, file_format, read_records, table_schema
from pipelines.records.schemas import make_schema
from pipelines.records.shards import MissingColumnError
from pipelines.records.url_lists import list_errors
from pipelines.storage.bounded import BLOCK_BYTES, line_blocks

REJECT_SCHEMA = make_schema(file="string", line="int64", reason="string", text="string")
# Decompressed garbage may contain no newline at all; no submission is near this size.
_MAX_LINE_BYTES = 32 << 20
_SHOWN_CHARACTERS = 200

_END_OF_TIME_S = 4102444800  # the year 2100
# Subreddit names have at most 21 characters, titles 300; a hostile dump must not fill the memory with longer ones.
_MAX_ID_CHARACTERS, _MAX_SUBREDDIT_CHARACTERS, _MAX_TITLE_CHARACTERS = 64, 128, 4096
_MAX_AUTHOR_CHARACTERS = 128
_INT64_MAX = 2**63 - 1
_PREFIX = "t3_"

# The columns of a table, under the names that public ones use; the first that is there counts.
_COLUMNS = {
    "url": ("url", "link_url", "link"),
    "score": ("score", "ups", "upvotes", "up_votes"),
    "created_utc": ("created_utc", "created", "created_at", "timestamp", "time_created", "datetime", "date"),
    "id": ("id", "post_id", "submission_id", "name"),
    "subreddit": ("subreddit", "subreddit.name", "subreddit_name"),
    "over_18": ("over_18", "subreddit.nsfw", "nsfw"),
    "permalink": ("permalink", "full_link", "link"),
    **{name: (name,) for name in ("title", "author", "domain", "is_self", "promoted", "url_overridden_by_dest")},
}
_PERMALINK = re.compile("/r/([^/]+)/comments/([a-z0-9]+)")
_BOOLS = {"true": True, "false": False, "1": True, "0": False}

Id = Annotated[str, Meta(min_length=len(_PREFIX) + 1, max_length=_MAX_ID_CHARACTERS)]
Time = Annotated[int, Meta(ge=0, lt=_END_OF_TIME_S)]
Int64 = Annotated[int, Meta(ge=-_INT64_MAX - 1, le=_INT64_MAX)]
Text = Annotated[str, Meta(min_length=1)]


class BadLineError(ValueError):
    """A line that is not a submission; its message is the reason, in snake_case."""


class Post(msgspec.Struct, gc=False):
    """The fields that say where a post links to."""

    url: Text | None = None
    url_overridden_by_dest: str | None = None
    domain: Text | None = None
    is_self: Any = None

    @property
    def link(self) -> str | None:
        """The URL of the post, after edits."""
        return self.url_overridden_by_dest or self.url

    @property
    def links_to_itself(self) -> bool:
        """Whether the post has a text instead of a link."""
        return self.is_self if isinstance(self.is_self, bool) else (self.domain or "").startswith("self.")


class Submission(Post, gc=False, kw_only=True):
    """One submission in the same form for every source; None where the source has no usable value.

    `created_utc` is in seconds. `url` and `is_self` are resolved: they are those of the repeated post of a crosspost.
    """

    id: Id
    created_utc: Time
    score: Int64 | None = None
    subreddit: Annotated[str, Meta(max_length=_MAX_SUBREDDIT_CHARACTERS)] = ""
    author: Annotated[str, Meta(max_length=_MAX_AUTHOR_CHARACTERS)] | None = None
    title: Annotated[str, Meta(max_length=_MAX_TITLE_CHARACTERS)] = ""
    over_18: Any = False
    promoted: Any = False
    crosspost_parent_list: list[Post] | None = None

    def resolve(self) -> None:
        """Set `url` and `is_self` from the fields that decide about them."""
        parent = self.crosspost_parent_list[0] if self.crosspost_parent_list else Post()
        self.url = parent.link or self.link
        self.is_self = self.links_to_itself or parent.links_to_itself
        self.url_overridden_by_dest = self.crosspost_parent_list = None


# Not strict: numbers may be written as strings or as floats without a fraction.
_decoder = msgspec.json.Decoder(Submission, strict=False)


def decode_lines(lines: bytes) -> list[Submission] | None:
    """Return the submissions in lines of NDJSON; None if a line is blank, bad, or in an uncommon form.

    About 4 times as fast as `parse_line`, which decides about every line of such a block (benchmarks/scrape.md).
    """
    try:
        if not lines.isascii():
            lines.decode()  # msgspec does not check the encoding of fields that it skips
        # `decode_lines` of msgspec accepts an object that extends over lines, and a line that contains several.
        submissions = list(map(_decoder.decode, io.BytesIO(lines)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for submission in submissions:
        if (
            submission.url_overridden_by_dest
            or submission.is_self.__class__ is not bool
            or submission.crosspost_parent_list
            or submission.id[2] == _PREFIX[2]
        ):
            submission.id = submission.id.removeprefix(_PREFIX)
            submission.resolve()
    return submissions


def parse_line(line: bytes) -> Submission:
    """Return the submission in a line of NDJSON; raise BadLineError if it is not one."""
    if submissions := decode_lines(line.rstrip(b"\n") + b"\n"):
        return submissions[0]
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLineError("not_json") from None
    if not isinstance(record, dict):
        raise BadLineError("not_an_object")
    return parse_submission(record)


def parse_submission(record: Mapping[str, Any]) -> Submission:
    """Return the submission in a JSON object; raise BadLineError if it has no id or time, or an overlong name."""
    created_utc = _whole_number(record.get("created_utc"))
    if created_utc is None or not 0 <= created_utc < _END_OF_TIME_S:
        raise BadLineError("no_created_utc")
    id = (_text(record.get("id")) or _text(record.get("name"))).removeprefix(_PREFIX)
    if not id:
        raise BadLineError("no_id")
    if len(id) > _MAX_ID_CHARACTERS:
        raise BadLineError("long_id")
    subreddit = _text(record.get("subreddit"))
    if len(subreddit) > _MAX_SUBREDDIT_CHARACTERS:
        raise BadLineError("long_subreddit")
    parents = record.get("crosspost_parent_list") or [None]
    parent = parents[0] if isinstance(parents, list) else None
    submission = Submission(
        id=id,
        created_utc=created_utc,
        score=_whole_number(record.get("score")),
        subreddit=subreddit,
        author=_text(record.get("author"))[:_MAX_AUTHOR_CHARACTERS] or None,
        title=_text(record.get("title"))[:_MAX_TITLE_CHARACTERS],
        over_18=record.get("over_18", False),
        promoted=record.get("promoted", False),
        crosspost_parent_list=[Post(**_post_fields(parent))] if isinstance(parent, dict) else None,
        **_post_fields(record),
    )
    submission.resolve()
    return submission


def read_table(path: str, rejects: Rejects) -> Iterator[tuple[int, Submission]]:
    """Yield the submissions of a table (CSV, TSV, Parquet) with the numbers of their lines or rows.

    Raises MissingColumnError without a column of URLs or of scores, UrlListError if the file cannot be read.
    """
    with list_errors():
        columns = _find_columns(path, table_schema(path).names) if file_format(path) in TABLES else {}
        names = list(dict.fromkeys(columns.values()))
        for number, row, content in read_records(path, columns=names, max_bytes=_MAX_LINE_BYTES, report_bytes=True):
            try:
                if isinstance(row, BadRecord):
                    raise BadLineError(row.reason)
                columns = columns or _find_columns(path, list(row))
                yield number, _parse_row(row, columns)
            except BadLineError as error:
                rejects.add(number, str(error), content or repr(row).encode(errors="replace"))
                if str(error) == "no_created_utc" and not rejects.bad_time:
                    column = columns["created_utc"]
                    rejects.bad_time = f"{column} {row[column]!r} in line {number} is no time"


def _find_columns(path: str, present: Sequence[str]) -> dict[str, str]:
    """Return the columns of the fields that a table has."""
    names = {name.lower(): name for name in reversed(present)}
    columns = {field: names[name] for field, known in _COLUMNS.items() for name in reversed(known) if name in names}
    for field in ("url", "score"):
        if field not in columns:
            remedy = "; use --source urls to keep all URLs regardless of score" if field == "score" else ""
            if len(present) == 1 and {*present[0]} & {*";\t|"}:
                remedy = "; separate its columns by commas"
            raise MissingColumnError(
                f"{path}: has no column of {field}s ({', '.join(_COLUMNS[field])}), so it is not a table of "
                f"submissions (it has {', '.join(present)}){remedy}",
                field,
            )
    return columns


def _parse_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> Submission:
    """Return the submission in a row; without a column of ids or a time, its id is empty or its time 0."""
    record = {field: row[column] for field, column in columns.items()}
    if columns.get("id", "").lower() == "name" and not str(record["id"]).startswith(_PREFIX):
        del record["id"]  # of something else
    if match := _PERMALINK.search(str(record.get("permalink"))):
        record = {**record, "subreddit": record.get("subreddit") or match[1], "id": record.get("id") or match[2]}
    for field in {"is_self", "over_18", "promoted"} & record.keys():
        record[field] = _BOOLS.get(str(record[field]).lower(), record[field])
    record["created_utc"] = _seconds(record.get("created_utc", 0))
    submission = parse_submission({"id": "-", **record})
    submission.id = submission.id if "id" in record else ""
    return submission


def _seconds(value: Any) -> Any:
    """Return a date in ISO 8601 (UTC, unless it has a time zone), or milliseconds, as seconds; 0 for an empty cell.

    Another value stays as it is.
    """
    text = "" if value is None else str(value).strip()
    if "-" in text:
        instant = parse_instant(text.removesuffix(" UTC"))
        return value if instant is None else int(instant.timestamp())
    number = _whole_number(text or 0)
    return value if number is None else number // 1000 if number >= _END_OF_TIME_S else number


def _post_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _text(record.get(name)) or None for name in ("url", "url_overridden_by_dest", "domain")}
    return texts | {"is_self": record.get("is_self")}


def _text(value: Any) -> str:
    """Return a string that can be encoded as UTF-8, empty if the value is not a string."""
    if not isinstance(value, str):
        return ""
    return replace_surrogates(value)


def _whole_number(value: Any) -> int | None:
    """Return a number, or a string that contains one, as a whole number of 64 bits."""
    if isinstance(value, str):
        try:
            value = float(value) if {*value} & {*".eE"} else int(value)
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -_INT64_MAX - 1 <= value <= _INT64_MAX else None


class Rejects:
    """Counts the lines of one file that are not a submission by reason, and passes them to `write`, if it is given.

    `first` is the first of them as a row of REJECT_SCHEMA, `bad_time` what is wrong with the first time of a table.
    """

    def __init__(self, file: str, write: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._file = file
        self._write = write
        self.reasons: Counter[str] = Counter()
        self.first: dict[str, Any] | None = None
        self.bad_time = ""

    def add(self, line: int, reason: str, content: bytes) -> None:
        """Add one line with its first 200 characters."""
        # A character has at most four bytes.
        text = content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")[:_SHOWN_CHARACTERS]
        row = {"file": self._file, "line": line, "reason": reason, "text": text.rstrip("\r\n")}
        self.reasons[reason] += 1
        self.first = self.first or row
        if self._write:
            self._write(row)


def read_submissions(
    stream: BinaryIO, rejects: Rejects, *, block_bytes: int = BLOCK_BYTES, max_line_bytes: int = _MAX_LINE_BYTES
) -> Iterator[tuple[Sequence[int], list[Submission]]]:
    """Yield the submissions of a dump with their line numbers from 1, a few hundred at a time.

    Bad lines are added to `rejects`, blank ones skipped.
    """
    line = 1
    for block in line_blocks(stream, max_line_bytes, block_bytes):
        block = block if block.endswith(b"\n") else block + b"\n"
        submissions = decode_lines(block)
        if submissions is not None:
            yield range(line, line + len(submissions)), submissions
            line += len(submissions)
        else:
            lines = block[:-1].split(b"\n")
            yield _parse_lines(lines, line, rejects)
            line += len(lines)


def _parse_lines(lines: Sequence[bytes], first_line: int, rejects: Rejects) -> tuple[list[int], list[Submission]]:
    """Return the submissions of a block with bad or uncommon lines, with their line numbers."""
    numbers, submissions = [], []
    for number, line in enumerate(lines, first_line):
        if not line or line.isspace():
            continue
        try:
            submissions.append(parse_line(line))
            numbers.append(number)
        except BadLineError as error:
            rejects.add(number, str(error), line)
    return numbers, submissions
