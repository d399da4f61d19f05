"""Profiles: named, versioned sets of filter rules for links, in `data/profiles/NAME.toml`.

A rule has one condition, and its name is the reason of its drops. A profile also has the defaults of the minimum score
of a link, and of how the scores of its submissions are combined.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pipelines import storage
from pipelines.engine.config import check_known
from pipelines.errors import InputError
from pipelines.stages.scrape.config import KARMA
from pipelines.stages.scrape.rules import Rule
from pipelines.stages.scrape.submission import Submission
from pipelines.storage.resources import data_path

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ENDING = re.compile(r"[a-z0-9]+")
_HEAD = {"version": int, "description": str, "min_score": int, "karma": str}
_CONDITIONS = tuple(field.name for field in dataclasses.fields(Rule) if field.name not in ("name", "except_subreddits"))
_LISTS = ("domains", "hosts", "extensions", "endings", "subreddits", "subreddit_words", "except_subreddits")


@dataclasses.dataclass(frozen=True)
class Profile:
    """The rules of a profile in order, and its defaults of `--min-score` and `--karma`."""

    name: str
    version: int
    description: str
    min_score: int
    karma: str
    rules: tuple[Rule, ...]
    fingerprint: str

    def reason_to_drop(self, submission: Submission, url: str, domain: str) -> str | None:
        """Return the name of the first rule that matches a submission with this canonical URL and registered domain."""
        for rule in self.rules:
            if rule.matches(submission, url, domain):
                return rule.name
        return None


def load_profile(name: str) -> Profile:
    """Read a profile by name; raise InputError if its file is missing or invalid."""
    path = data_path(f"profiles/{name}.toml")
    return parse_profile(name, storage.read_bytes(path), path)


@functools.lru_cache(maxsize=32)
def parse_profile(name: str, data: bytes, path: str) -> Profile:
    """Parse the content of a profile's file; raise InputError or UsageError, with the file's name, if it is invalid."""
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid TOML ({error})") from error
    for key in tables:
        check_known(key, (*_HEAD, "rule"), "key", path)
    head = {key: _head_value(tables, key, path) for key in _HEAD}
    rules = tuple(_rule(table, path) for table in tables.get("rule", []))
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two rules have the same name; rule names are drop reasons, so they must be unique")
    return Profile(name, **head, rules=rules, fingerprint=hashlib.sha256(data).hexdigest())


def _head_value(tables: Mapping[str, Any], key: str, path: str) -> Any:
    value = tables.get(key)
    if (
        type(value) is not _HEAD[key]
        or (isinstance(value, int) and value < 0)
        or (key == "karma" and value not in KARMA)
    ):
        raise InputError(
            f"{path}: {key} = {value!r} is missing or invalid; compare with the other profiles in that folder"
        )
    return value


def _rule(table: Mapping[str, Any], path: str) -> Rule:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{path}: a rule has no name in lower case with underscores: {name!r}")
    where = f"{path}, rule {name}"
    for key in table:
        check_known(key, ("name", "except_subreddits", *_CONDITIONS), "condition", where)
    values = {key: _condition(key, value, where) for key, value in table.items() if key != "name"}
    conditions = [key for key in values if key != "except_subreddits"]
    if len(conditions) != 1:
        raise InputError(f"{where}: has {len(conditions)} conditions, one is needed")
    if "except_subreddits" in values and conditions != ["subreddit_words"]:
        raise InputError(f"{where}: except_subreddits requires subreddit_words")
    return Rule(name, **values)


def _condition(key: str, value: Any, where: str) -> Any:
    if key == "over_18" and value is True:
        return True
    if key == "created_from" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return midnight_utc(value)
    if key == "shorter_than" and type(value) is int and 0 < value <= 1000:
        return value
    if key == "unlike" and _is_expression(value):
        return value
    if key in _LISTS and _is_list_of_names(value) and (key not in ("extensions", "endings") or _are_endings(value)):
        return frozenset(value)
    raise InputError(f"{where}: {key} = {value!r} is not what this condition takes (lists are in lower case)")


def _is_list_of_names(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, str) and item and item == item.lower().strip() for item in value)


def _are_endings(values: list[str]) -> bool:
    # Only the part after the last dot is compared.
    return all(_ENDING.fullmatch(value) for value in values)


def _is_expression(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(value) and re.compile(value) is not None
    except re.error:
        return False


def midnight_utc(day: dt.date) -> int:
    """Return the first second of a day, UTC."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())
