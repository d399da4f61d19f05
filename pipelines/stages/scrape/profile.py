"""Profiles: named, versioned sets of rules for which links to leave out, in `data/profiles/NAME.toml`.

A rule has one condition, and its name is the reason under which its drops are counted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pipelines.core import storage
from pipelines.core.config import check_known
from pipelines.core.errors import InputError
from pipelines.core.resources import data_path
from pipelines.stages.scrape.submission import RawSubmission

_EXTENSION = re.compile(r"^[a-z]+://[^/?#]*/(?:[^/?#]*/)*[^/?#]*\.([A-Za-z0-9]{1,10})(?:[?#]|$)")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CONDITIONS = ("domains", "extensions", "created_from", "over_18", "subreddits")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One reason to drop a link; only one of the conditions is set. Times in seconds since 1970, UTC."""

    name: str
    domains: frozenset[str] = frozenset()
    extensions: frozenset[str] = frozenset()
    created_from: int | None = None
    over_18: bool = False
    subreddits: frozenset[str] = frozenset()

    def drops(self, submission: RawSubmission, url: str, domain: str) -> bool:
        """Tell whether the rule drops a submission with this canonical URL and registered domain."""
        return (
            domain in self.domains
            or (bool(self.extensions) and _extension(url) in self.extensions)
            or (self.created_from is not None and submission.created_utc >= self.created_from)
            or (self.over_18 and submission.over_18)
            or (bool(self.subreddits) and submission.subreddit.lower() in self.subreddits)
        )


@dataclasses.dataclass(frozen=True)
class Profile:
    """The rules of a profile, in order."""

    name: str
    rules: tuple[Rule, ...]
    fingerprint: str

    def reason_to_drop(self, submission: RawSubmission, url: str, domain: str) -> str | None:
        """Return the name of the first rule that drops a submission, or None."""
        for rule in self.rules:
            if rule.drops(submission, url, domain):
                return rule.name
        return None


def load_profile(name: str) -> Profile:
    """Read the profile of a name; raise InputError where its file is absent or wrong."""
    path = data_path(f"profiles/{name}.toml")
    data = storage.read_bytes(path)
    return Profile(name, parse_rules(data, path), hashlib.sha256(data).hexdigest())


def parse_rules(data: bytes, path: str) -> tuple[Rule, ...]:
    """Read the rules of a profile's file; raise InputError or UsageError, by the file's name, where it is wrong."""
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid TOML ({error})") from error
    for key in tables:
        check_known(key, ("version", "description", "rule"), "key", path)
    rules = tuple(_rule(table, path) for table in tables.get("rule", []))
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two rules have one name; each is the reason of its own drops")
    return rules


def _rule(table: Mapping[str, Any], path: str) -> Rule:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{path}: a rule has no name in lower case with underscores: {name!r}")
    for key in table:
        check_known(key, ("name", *_CONDITIONS), "condition", f"{path}, rule {name}")
    conditions = {key: _condition(key, value, f"{path}, rule {name}") for key, value in table.items() if key != "name"}
    if len(conditions) != 1:
        raise InputError(f"{path}, rule {name}: has {len(conditions)} conditions, one is needed")
    return Rule(name, **conditions)


def _condition(key: str, value: Any, where: str) -> Any:
    if key == "over_18" and value is True:
        return True
    if key == "created_from" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return midnight_utc(value)
    if key in ("domains", "extensions", "subreddits") and _is_list_of_names(value):
        return frozenset(value)
    raise InputError(f"{where}: {key} = {value!r} is not what this condition takes (lists are in lower case)")


def _is_list_of_names(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, str) and item == item.lower().strip() for item in value)


def midnight_utc(day: dt.date) -> int:
    """Return the first second of a day, UTC."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())


def _extension(url: str) -> str | None:
    """Return the ending of a canonical URL's path in lower case, without its dot."""
    match = _EXTENSION.match(url)
    return match[1].lower() if match else None
