"""Formats sizes, durations, counts and plurals: the only formatters of messages, tables and reports."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
import shlex
import sys
from collections.abc import Collection, Iterable
from typing import Any

_SEPARATORS = str.maketrans("", "", "-_. ")
# What a terminal obeys or what reorders a text: control characters other than tabs and line feeds, line separators and
# directional controls; also halves of surrogate pairs, which cannot be written as UTF-8. In a line, line feeds too.
_SET = r"\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS, _LINE_CONTROLS = re.compile(rf"\r(?!\n)|[{_SET}]"), re.compile(rf"[\r\n{_SET}]")
# User and password of a URL. A name alone is not one in abfs://CONTAINER@ACCOUNT, and a number after a colon is a port,
# but secret keys may contain slashes. Without a scheme, as of a proxy, only those before a host with a port.
_CREDENTIALS = re.compile(
    r"(?:(?<=//)|(?<=:/)(?!/))(?:(?<!abfs://)(?<!abfss://)[^\s/?#<>]+|[^\s/?#:\[<>]*:(?!\d+(?:\W|$))[^\s<>]{1,200})@"
    r"|(?<![\w.%+~-])(?!\d+:)[\w.%+~-]{1,100}:[^\s/@]{1,200}@(?=[\w.-]+:\d)"
)
# In the names of fields, which are keys without their underscores.
_TERMS = {"url": "URL", "utc": "UTC", "ngrams": "n-grams", "held out": "held-out", "near duplicate": "near-duplicate"}
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(size_bytes: float) -> str:
    """Format a size in decimal units with three significant digits: `1.49 GB`, `33 MB`, `512 bytes`."""
    for size, unit in _SIZES:
        if size_bytes >= size:
            scaled = size_bytes / size
            return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:,.0f} {unit}"
    return plural(round(size_bytes), "byte")


def format_duration(seconds: float) -> str:
    """Format a duration: `4.2 s`, `3 min 20 s`, `2 h 05 min`, `16 days 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 72:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24:,} days {hours % 24} h"


def format_percent(share: float | None, digits: int = 1) -> str:
    """Format a share between 0 and 1 as a percentage: `12.5%`; an en dash for None."""
    return "–" if share is None else f"{share:.{digits}%}"


def format_count(count: float | None) -> str:
    """Format a whole number with thousands separators; an en dash for None."""
    return "–" if count is None else f"{count:,.0f}"


def format_decimal(value: float | None, digits: int = 2) -> str:
    """Format a number with a fixed number of digits; an en dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def format_number(value: Any, digits: int = 4) -> str:
    """Format a whole number with separators, another with significant digits; an en dash for None, others as text."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.{digits}g}"


def format_quantity(number: float, unit: str) -> str:
    """Format a number with its unit: `12,345 records`, `2.3 records`, `3.2 GB` for the unit `bytes`."""
    if unit == "bytes":
        return format_bytes(number)
    unit = unit.removesuffix("s") if number == 1 else unit
    return f"{number:,.0f} {unit}" if number >= 10 or number == int(number) else f"{number:.1f} {unit}"


def describe_field(name: str, value: Any) -> str:
    """Return a named value in words: `URL source: canonical`, `language score: 0.9876`."""
    words = re.sub(rf"\b({'|'.join(_TERMS)})", lambda match: _TERMS[match[0]], name.replace("_", " "))
    if name == "created_utc" and abs(value) < 1 << 37:  # later than the year 6000, it is no time
        value = dt.datetime.fromtimestamp(value, dt.UTC)
    value = value.isoformat(" ", "seconds") if isinstance(value, dt.datetime) else value
    if isinstance(value, list):
        value = ", ".join(" ".join(map(str, item.values())) if isinstance(item, dict) else str(item) for item in value)
    value = value.hex() if isinstance(value, bytes) else value
    return f"{words}: {format_bytes(value) if name.endswith('bytes') else format_number(value)}"


def format_rounded(number: float) -> str:
    """Format a large number with three significant digits: `300 billion`, `2.1 million`, `9,830`."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"


def format_done(done: float, total: float | None, unit: str) -> str:
    """Format the completed amount: `250 of 1,000 records`, `1.5 MB of 3 GB`."""
    if total is None:
        return format_quantity(done, unit)
    return f"{format_bytes(done) if unit == 'bytes' else f'{done:,.0f}'} of {format_quantity(total, unit)}"


def format_rate(rate: float | None, seconds_left: float | None, unit: str) -> str:
    """Format a rate and the time left, as far as they are known: `, 17 records/s, 44 s left`."""
    shown = "" if rate is None or rate < 0.05 else f", {format_quantity(rate, unit)}/s"
    return f"{shown}, {format_duration(seconds_left)} left" if seconds_left and seconds_left > 0 else shown


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Format a count with its noun: `1 file`, `2 files`, `3 entries` (with `nouns` given)."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def loose_name(name: str) -> str:
    """Return a name in lower case without hyphens, underscores, dots and spaces."""
    return name.lower().translate(_SEPARATORS)


def suggest_nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return "did you mean NAME?" with the known name that is most similar to a mistyped one, else `otherwise`."""
    import difflib  # here, since `webtext --help` does not need it

    # A typo changes the length by few characters; other words are suggested if they begin with the name.
    typed = loose_name(name)
    most = max(2, len(typed) // 4)
    names = {loose_name(word): word for word in known}
    near = difflib.get_close_matches(typed, [name for name in names if abs(len(name) - len(typed)) <= most], 1, 0.72)
    part = re.compile(rf"\b{re.escape(name.strip('-'))}\b")
    near = [key for key, word in names.items() if len(typed) > 2 and part.search(word)] or near
    near = near or [name for name in names if len(typed) > 2 and name.startswith(typed)]
    return f"did you mean {names[near[0]]}?" if near else otherwise


def escape_unprintable(text: str, keep: Collection[str] = ()) -> str:
    """Write characters without a glyph, such as ESC and no-break spaces, as `\\x1b`, except those in `keep`."""
    unprintable = (character for character in set(text) if not (character.isprintable() or character in keep))
    return text.translate({ord(character): character.encode("unicode_escape").decode() for character in unprintable})


def escape_controls(text: str, one_line: bool = False) -> str:
    """Write characters that a terminal obeys or that reorder a text as `\\u001b`, which is also valid in JSON."""
    return (_LINE_CONTROLS if one_line else _CONTROLS).sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_output(text: str, one_line: bool = False) -> str:
    """Return a text for standard output: without controls if that is a terminal, else as it is."""
    return escape_controls(text, one_line) if sys.stdout.isatty() else text


def mask_credentials(text: str) -> str:
    """Replace user and password of the URLs in a text: `https://***@host/`."""
    return _CREDENTIALS.sub("***@", text)


def to_json(value: Any) -> str:
    """Return rows or dataclasses as JSON on one line; times as ISO 8601, bytes as hexadecimal digits."""
    return json.dumps(value, ensure_ascii=False, default=_plain_value)


def _plain_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dt.date | dt.datetime | dt.time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def name_corpus(message: str, corpus: str) -> str:
    """Return a message whose commands of webtext name the corpus, so that they can be pasted."""
    option = shlex.quote(corpus).replace("\\", r"\\")
    without = r"(?!init\b|demo\b)[a-z-]+\b(?![^`]* (?:--corpus|-i) )"
    return re.sub(rf"`(webtext {without}[^`]*)`", rf"`\1 --corpus {option}`", message)
