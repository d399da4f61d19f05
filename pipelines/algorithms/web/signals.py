"""Wishes of owners about the use of their pages: in headers, meta elements, robots.txt and tdmrep.json.

A signal is the name of a wish, and where it is or what it says: `noai:header`, `noindex:meta:GPTBot`,
`tdm-reservation:file`, `content-usage:train-ai=n`, `robots:GPTBot`. docs/signals.md has the forms and their sources.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import unescape

from protego import Protego

Fields = Iterable[tuple[str, str]]
KINDS = tuple("noai noimageai noindex noarchive tdm-reservation content-usage content-signal robots".split())
_TDM, *_PREFERENCES = KINDS[4:7]
# Google reads `none` as noindex and nofollow; what may not be indexed may not be shown from a cache, either.
_DIRECTIVES = {name: [name] for name in KINDS[:4]} | {"none": ["noindex", "noarchive"]}
# Directives with a value after a colon, as the names of agents have their directives.
_WITH_VALUE = frozenset({"max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"})
_WORD = re.compile(r"([\w*.-]+)\s*(:?)")
_PREFERENCE = re.compile(r"(?<![\w*.-])([\w*.-]{1,40}+)\s*=\s*\"?(n|no|y|yes)\b", re.IGNORECASE)
_PREFERENCE_LINE = re.compile(r"(content-(?:usage|signal))\s*:\s*(/\S*)?(.*)", re.IGNORECASE)
# Real files have a few rules; each costs up to ~50 µs per page. Sites can make up preferences, which come last.
_MAX_RULES, _MAX_SIGNALS = 200, 1000
_META = re.compile(rb"<[mM][eE][tT][aA]\s[^>]{0,2000}>")
_ATTRIBUTE = re.compile(r"\b(name|property|content)\s*=\s*(?:\"([^\"]*)|'([^']*)|([^\s\"'>]+))", re.IGNORECASE)


def page_signals(headers: Fields, meta: Fields, agents: Iterable[str], site: Iterable[str] = ()) -> list[str]:
    """Return the signals of a page, sorted: those of its site, its HTTP headers, and its meta elements.

    Directives for a user agent count for `agents` only. Of TDMRep, meta supersedes headers, and these the site's file.
    """
    signals, names = set(site), {agent.lower(): agent for agent in agents}
    for place, fields in (("header", headers), ("meta", meta)):
        for name, value in ((name.lower(), value.strip()) for name, value in fields):
            if name == _TDM and value in ("0", "1"):
                signals = {signal for signal in signals if not signal.startswith(_TDM)}
                signals |= {f"{_TDM}:{place}"} if value == "1" else set()
            elif place == "header" and name in _PREFERENCES:
                signals.update(_refusals(name, value))
            elif name == ("x-robots-tag" if place == "header" else "robots"):
                signals.update(_directives(value, place, names))
            elif place == "meta" and name in names:
                signals.update(_directives(f"{name}: {value}", place, names))
    return sorted(sorted(signals, key=lambda signal: ("=" in signal, signal))[:_MAX_SIGNALS])


def _directives(value: str, place: str, agents: Mapping[str, str]) -> Iterator[str]:
    """Yield the signals in robots directives: `noindex, noai`, or `gptbot: noindex, otherbot: noai`."""
    suffix: str | None = ""  # None: of another agent
    for part in value.lower().split(","):
        for word, colon in _WORD.findall(part):
            if colon and word in _WITH_VALUE:
                break
            if colon:
                suffix = f":{agents[word]}" if word in agents else None
            elif suffix is not None:
                yield from (f"{name}:{place}{suffix}" for name in _DIRECTIVES.get(word, ()))


def _refusals(kind: str, value: str) -> list[str]:
    """Return the signals of what a dictionary such as `train-ai=n, search=y` refuses; the last of equal keys counts."""
    answers = {key.lower(): answer.lower() for key, answer in _PREFERENCE.findall(value)}
    return [f"{kind}:{key}={answer}" for key, answer in answers.items() if answer in ("n", "no")]


def meta_elements(head: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and content of each meta element at the beginning of a page, without parsing the page."""
    for tag in _META.findall(head):
        attributes = _ATTRIBUTE.findall(tag.decode("utf-8", "replace"))
        values = {key.lower(): unescape("".join(texts)) for key, *texts in attributes}
        yield values.get("property") or values.get("name", ""), values.get("content", "")


def parse_site(robots: bytes, tdmrep: bytes, agents: Iterable[str]) -> Callable[[str], Iterator[str]]:
    """Return the function that yields the signals for a URL in the two files of its site; a file can be anything."""
    groups, rules = parse_groups(robots), defaultdict[bytes, list[str]](list)
    for agent in agents:
        rules[applicable_lines(groups, agent.lower())].append(agent)
    preferences = defaultdict[tuple[str, str], list[str]](list)
    for line in filter(None, map(_PREFERENCE_LINE.match, applicable_lines(groups, "*").decode().splitlines())):
        preferences[line[2] or "/", line[1].lower()] += _refusals(line[1].lower(), line[3])
    shortest_first = sorted(preferences, key=lambda key: len(key[0]))[:_MAX_RULES]
    entries = []
    with contextlib.suppress(ValueError, RecursionError):
        entries = json.loads(tdmrep.decode("utf-8-sig") or "[]")
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    reserved = [(str(entry.get("location")), str(entry.get(_TDM)) == "1") for entry in entries[:_MAX_RULES]]

    def signals(url: str) -> Iterator[str]:
        for lines in rules:
            if not is_allowed(lines, url):
                yield from (f"robots:{agent}" for agent in rules[lines])
        # Of a kind of preference, the longest pattern that matches counts; of reservations, the first.
        longest = {kind: (pattern, kind) for pattern, kind in shortest_first if _matches(pattern, url)}
        yield from (signal for key in longest.values() for signal in preferences[key])
        if next((is_reserved for pattern, is_reserved in reserved if _matches(pattern, url)), False):
            yield f"{_TDM}:file"

    return signals


def _matches(pattern: str, url: str) -> bool:
    """Return whether a pattern with `*` and `$` matches the path of a URL, as in robots.txt."""
    line = f"Disallow: {pattern}".splitlines()[0].encode("utf-8", "replace")
    return pattern == "/" or not is_allowed(line, url)


# Of robots.txt, by RFC 9309.
MAX_BYTES = 500 * 1024
# Protego also accepts other spellings of the fields, and a space instead of the colon.
_AGENT_LINE = re.compile(r"user(?:-|\s*)agent(?:\s*:|\s|$)\s*(.*)", re.IGNORECASE)
_RULE_LINE = re.compile(r"(?!site-?maps?\b|host\b)(?:[^:]*:|allow|dis|crawl)", re.IGNORECASE)
_SMALL_BYTES = 32 << 10
# The lower-case names of user agents of each group, and its rule lines.
Groups = list[tuple[list[str], list[str]]]


def parse_groups(data: bytes) -> Groups:
    """Return the groups of a robots.txt, in time linear in its size."""
    groups: Groups = []
    for line in data.decode("utf-8", "replace").removeprefix("\ufeff").splitlines():
        line = line.partition("#")[0].strip()
        if agent := _AGENT_LINE.match(line):
            if not groups or groups[-1][1]:
                groups.append(([], []))
            name = agent[1].lower()
            groups[-1][0].append(name if name == "*" else name.replace("*", ""))
        elif groups and _RULE_LINE.match(line):
            groups[-1][1].append(line)
    return groups


def applicable_lines(groups: Groups, product: str) -> bytes:
    """Return the rule lines of the groups that apply to a product token, in lower case.

    Protego would copy the rules of a group for each of its user agents: 15,000 user agents x 30,000 rules took more
    than 3 GB. As in Protego, the longest name that the product begins with wins, and `*` stands for all other products.
    """
    ranks = {name: len(name) for names, _ in groups for name in names if name and product.startswith(name)}
    best = max(ranks, key=lambda name: ranks[name], default="*")
    return "\n".join(line for names, lines in groups if best in names for line in lines).encode()


def is_allowed(lines: bytes, url: str) -> bool:
    """Return whether rule lines allow a page; takes up to ~1 s for malicious ones."""
    return b"di" not in lines.lower() or parser(lines).can_fetch(url, "*")


def parser(lines: bytes) -> Protego:
    """Return the parser of rule lines, whose user agent is `*`."""
    return (_parse_small if len(lines) <= _SMALL_BYTES else _parse_large)(lines)


def _parse(lines: bytes) -> Protego:
    return Protego.parse(f"User-agent: *\n{lines.decode()}")


# Parsed rules take up to ~30 times the memory of their text. These limits keep them under ~200 MB per process; rules
# that are not in their cache are parsed again (500 KiB: ~0.2 s). Few files have more than 32 KiB for a crawler.
_parse_small, _parse_large = functools.lru_cache(128)(_parse), functools.lru_cache(4)(_parse)
