"""Reads submissions from the lines of a dump, whatever month the lines are from.

What drifted from 2005 to today: `created_utc` is a string in 2014 and 2015 and a float in some sources; `score`, `url`
and `domain` are null in some months; `name`, `promoted` and `is_self` come and go; from 2017 on a crosspost contains
the post that it repeats, whose URL is the one that counts; from 2020 on the URL of an edited post is in
`url_overridden_by_dest`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_END_OF_TIME_S = 4102444800  # the year 2100
# Subreddit names have at most 21 characters, titles 300; a hostile dump must not fill the memory with longer ones.
_MAX_ID_CHARACTERS, _MAX_SUBREDDIT_CHARACTERS, _MAX_TITLE_CHARACTERS = 64, 128, 4096
_INT64_MAX = 2**63 - 1
_PREFIX = "t3_"

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
        submissions = _decoder.decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # An object may extend over lines, and a line may contain several.
    if len(submissions) != lines.count(b"\n"):
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
    parents = record.get("crosspost_parent_list") or [None]
    parent = parents[0] if isinstance(parents, list) else None
    submission = Submission(
        id=_id(record),
        created_utc=created_utc,
        score=_whole_number(record.get("score")),
        subreddit=_subreddit(record),
        title=_text(record.get("title"))[:_MAX_TITLE_CHARACTERS],
        over_18=record.get("over_18", False),
        promoted=record.get("promoted", False),
        crosspost_parent_list=[Post(**_post_fields(parent))] if isinstance(parent, dict) else None,
        **_post_fields(record),
    )
    submission.resolve()
    return submission


def _id(record: Mapping[str, Any]) -> str:
    id = _text(record.get("id")) or _text(record.get("name"))
    id = id.removeprefix(_PREFIX)
    if not id:
        raise BadLineError("no_id")
    if len(id) > _MAX_ID_CHARACTERS:
        raise BadLineError("long_id")
    return id


def _subreddit(record: Mapping[str, Any]) -> str:
    name = _text(record.get("subreddit"))
    if len(name) > _MAX_SUBREDDIT_CHARACTERS:
        raise BadLineError("long_subreddit")
    return name


def _post_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _text(record.get(name)) or None for name in ("url", "url_overridden_by_dest", "domain")}
    return texts | {"is_self": record.get("is_self")}


def _text(value: Any) -> str:
    """Return a string that can be encoded as UTF-8, empty if the value is not a string."""
    if not isinstance(value, str):
        return ""
    # JSON can encode half a surrogate pair ("\ud83d"), which UTF-8 cannot.
    return value if value.isascii() else _SURROGATES.sub("\ufffd", value)


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
