"""Reads one submission from a line of a dump, whatever month the line is from.

What drifted from 2005 to today: `created_utc` is a string in 2014 and 2015 and a float in some sources; `score`, `url`
and `domain` are null in some months; `name`, `promoted` and `is_self` come and go; from 2017 on a crosspost names the
post that it repeats, whose address is the one that counts; from 2020 on the address of an edited post stands in
`url_overridden_by_dest`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_END_OF_TIME_S = 4102444800  # the year 2100, as in the scanner, which is slow to import
# Names of subreddits have at most 21 characters, titles 300; a hostile dump must not fill the memory with longer ones.
_MOST_ID_CHARACTERS, _MOST_SUBREDDIT_CHARACTERS, _MOST_TITLE_CHARACTERS = 64, 128, 4096
_INT64_END = 2**63


class BadLineError(ValueError):
    """A line that holds no submission; its message is the reason, in snake_case."""


class RawSubmission(NamedTuple):
    """A submission as a source has it, in one form; None where the source has nothing usable. Times in seconds, UTC.

    A tuple, because one is made for each of the links of a dump.
    """

    id: str
    created_utc: int
    url: str | None
    score: int | None
    subreddit: str
    title: str
    over_18: bool
    is_self: bool
    promoted: bool


def parse_line(line: bytes) -> RawSubmission:
    """Return the submission in a line of NDJSON; raise BadLineError where there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLineError("not_json") from None
    if not isinstance(record, dict):
        raise BadLineError("not_an_object")
    return parse_submission(record)


def parse_submission(record: Mapping[str, Any]) -> RawSubmission:
    """Return the submission in a JSON object; raise BadLineError where it has no id or no time, or an endless name."""
    created_utc = _whole_number(record.get("created_utc"))
    if created_utc is None or not 0 <= created_utc < _END_OF_TIME_S:
        raise BadLineError("no_created_utc")
    repeated = _repeated_post(record)
    return RawSubmission(
        id=_id(record),
        created_utc=created_utc,
        url=_url(repeated) or _url(record),
        score=_whole_number(record.get("score")),
        subreddit=_subreddit(record),
        title=_text(record.get("title"))[:_MOST_TITLE_CHARACTERS],
        over_18=record.get("over_18") is True,
        is_self=_is_self(record) or _is_self(repeated),
        promoted=record.get("promoted") is True,
    )


def _id(record: Mapping[str, Any]) -> str:
    id = _text(record.get("id")) or _text(record.get("name"))
    id = id.removeprefix("t3_")
    if not id:
        raise BadLineError("no_id")
    if len(id) > _MOST_ID_CHARACTERS:
        raise BadLineError("long_id")
    return id


def _subreddit(record: Mapping[str, Any]) -> str:
    name = _text(record.get("subreddit"))
    if len(name) > _MOST_SUBREDDIT_CHARACTERS:
        raise BadLineError("long_subreddit")
    return name


def _repeated_post(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the post that a crosspost repeats, an empty one for other posts."""
    parents = record.get("crosspost_parent_list")
    if isinstance(parents, list) and parents and isinstance(parents[0], dict):
        return parents[0]
    return {}


def _url(record: Mapping[str, Any]) -> str | None:
    return _text(record.get("url_overridden_by_dest")) or _text(record.get("url")) or None


def _is_self(record: Mapping[str, Any]) -> bool:
    is_self = record.get("is_self")
    return is_self if isinstance(is_self, bool) else _text(record.get("domain")).startswith("self.")


def _text(value: Any) -> str:
    """Return a string that can be written as UTF-8, empty where the value is none."""
    if not isinstance(value, str):
        return ""
    # JSON can spell half a character ("\ud83d"), which no UTF-8 file can hold.
    return value if value.isascii() else _SURROGATES.sub("\ufffd", value)


def text_of_json(content: str) -> str:
    """Return the text that a JSON string holds; `content` is what stands between its quotes."""
    return _text(json.loads(f'"{content}"'))


def _whole_number(value: Any) -> int | None:
    """Return a number, or a string that spells one, as a whole number of 64 bits."""
    if isinstance(value, str):
        try:
            value = float(value) if "." in value else int(value)
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -_INT64_END <= value < _INT64_END else None
