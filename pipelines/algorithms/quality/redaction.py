"""Replaces e-mail addresses, IP addresses and phone numbers in texts by placeholders.

The result depends on the text alone, and redacting it again changes nothing: placeholders, and other addresses and
numbers that are reserved for examples, are kept. All searches take linear time.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from pipelines.algorithms.web.urls import has_public_suffix

SPAN_TYPE = pa.list_(pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())]))
# RFC 2606, 5737, 3849, and the North American numbers for fiction.
_EMAIL, _IPV4, _IPV6, _PHONE = "email@example.com", "192.0.2.1", "2001:db8::1", "+1-202-555-0100"


class Span(NamedTuple):
    """A placeholder of a kind, in characters of the new text."""

    kind: str
    start: int
    end: int


class _Match(NamedTuple):
    """What is replaced, in characters of the old text, and by what."""

    start: int
    end: int
    placeholder: str
    kind: str = ""


def redact(text: str, kinds: Collection[str]) -> tuple[str, list[Span]]:
    """Return a text with placeholders for what it has of some of `KINDS`, and where these are, in order."""
    matches: list[_Match] = []
    rest = text
    for kind in KINDS:
        if kind in kinds and (new := [match._replace(kind=kind) for match in _FINDERS[kind](rest)]):
            matches += new
            # Later kinds are searched in what is left, so that matches do not overlap.
            rest = _replace(rest, [match._replace(placeholder="\0" * (match.end - match.start)) for match in new])
    matches.sort()
    spans, growth = [], 0
    for start, end, placeholder, kind in matches:
        spans.append(Span(kind, start + growth, start + growth + len(placeholder)))
        growth += len(placeholder) - (end - start)
    return _replace(text, matches), spans


def redact_texts(texts: pa.Array, kinds: Collection[str]) -> tuple[pa.Array, pa.Array]:
    """Return redacted texts in the type of `texts`, and their spans as `SPAN_TYPE`; both null where a text is."""
    results = [(None, None) if text is None else redact(text, kinds) for text in texts.to_pylist()]
    spans = [None if found is None else [span._asdict() for span in found] for _, found in results]
    return pa.array([text for text, _ in results], texts.type), pa.array(spans, SPAN_TYPE)


def _replace(text: str, matches: Sequence[_Match]) -> str:
    parts, position = [], 0
    for match in matches:
        parts += [text[position : match.start], match.placeholder]
        position = match.end
    return "".join([*parts, text[position:]]) if matches else text


# Also written as `[at]`; the parts of an address have at most 64 and 253 characters.
_AT = re.compile(r"[@＠]|[\[({][ ]?(?:[aAäÄ][tT]|@)[ ]?[\])}]")
_DOT = re.compile(r"[.．]|[ ]?[\[({][ ]?(?:[dD][oO][tT]|[.])[ ]?[\])}][ ]?|[ ](?:dot|DOT)[ ]")
_LOCAL = re.compile(r"[^\W_][\w.+%'~-]*$")
_LABEL = re.compile(r"[^\W_]+(?:-+[^\W_]+)*")
_MAX_LOCAL, _MAX_HOST = 64, 253
_EXAMPLES = ("example.com", "example.net", "example.org")


def _find_emails(text: str) -> Iterator[_Match]:
    """Find addresses whose host has a public suffix, other than examples and those of Git by SSH."""
    end = 0
    for at in _AT.finditer(text):
        is_plain = len(at[0]) == 1
        before = text[max(end, at.start() - _MAX_LOCAL - 1) : at.start()]
        local = _LOCAL.search(before if is_plain else before.removesuffix(" "))
        first = at.end() + (not is_plain and text[at.end() : at.end() + 1] == " ")
        if local and (size := _host_size(text[first : first + _MAX_HOST])):
            if local[0] == "git" and text[first + size : first + size + 1] in ("/", ":"):
                continue
            end = first + size
            yield _Match(at.start() - len(before) + local.start(), end, _EMAIL)


def _host_size(text: str) -> int:
    """Return how many characters at the start are a host with a public suffix; 0 for none, or for an example."""
    labels: list[str] = []
    ends: list[int] = []
    label = _LABEL.match(text)
    while label:
        labels.append(label[0].lower())
        ends.append(label.end())
        dot = _DOT.match(text, label.end())
        label = _LABEL.match(text, dot.end()) if dot else None
    # In `name@host.org.Then`, a space is missing.
    while len(labels) > 1 and not has_public_suffix(".".join(labels)):
        labels.pop()
    is_example = ".".join(labels[-2:]) in _EXAMPLES
    return 0 if len(labels) < 2 or is_example else ends[len(labels) - 1]


# They begin with what can be searched fast; what must be around it is checked after.
_ADDRESS_4 = re.compile(r"[0-9][0-9]{0,2}(?:\.[0-9]{1,3}){3}(?!\w|[.-]\w)")
_ADDRESS_6 = re.compile(r":(?<=(?<![\w:.])[23][0-9A-Fa-f]{3}:)(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{1,4}(?![\w:]|\.\w)")
_NO_ADDRESS = re.compile(r"(?i)(?:[\w.]|[a-z][/-]|\b(?:v|ver|versions?|release|build|firmware|section)[\s:.(]{1,3})$")
# All parts of a version are smaller; those of a 4,096th of all addresses are.
_SMALL = 32


def _find_ips(text: str) -> Iterator[_Match]:
    """Find addresses of the public Internet, other than networks, and what is more likely a version."""
    for match in _ADDRESS_4.finditer(text):
        before = text[max(0, match.start() - 12) : match.start()]
        if _is_public(match[0]) and not _NO_ADDRESS.search(before):
            parts = [int(part) for part in match[0].split(".")]
            if parts[3] and max(parts) >= _SMALL:
                yield _Match(*match.span(), _IPV4)
    for match in _ADDRESS_6.finditer(text):
        start = match.start() - 4
        if _is_public(text[start : match.end()]):
            yield _Match(start, match.end(), _IPV6)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


# Seven digits or more, with up to three other characters between two of them.
_NUMBER = re.compile(r"[+(0-9](?<![\w.,/=#$€£¥%&@+-][+(0-9])(?:[ ()./\xa0\u2010-\u2015-]{0,3}+[0-9]){6,40}+(?![\w@%])")
# Groups as in 202-555-0143 and 020 7946 0018, among the digits of other things.
_GROUPED = re.compile(
    r"(?<![0-9])(?:[2-9][0-9]{2}[^0-9]{1,3}[2-9][0-9]{2}[^0-9]{1,2}[0-9]{4}(?![0-9])|0[0-9]{2,4}[^0-9])"
)
_PHONE_WORD = re.compile(
    r"(?i)(?:\b(?:(?:tele)?phone|telefono?|t[ée]l|fax|call|mobile?|cell|hotline|whatsapp)\w{0,4}|\b[tfmp])[\s:.)(/]{1,4}$"
)
# Whose numbers count without a country code.
_REGIONS = ("US", "GB")


def _find_phones(text: str) -> Iterator[_Match]:
    """Find valid numbers with a country code; and those of `_REGIONS` that are grouped, or follow a word for phone."""
    for match in _NUMBER.finditer(text):
        before = text[max(0, match.start() - 24) : match.start()]
        if "+" in match[0] or _GROUPED.search(match[0]) or _PHONE_WORD.search(before):
            for first, last in _phone_spans(match[0]):
                yield _Match(match.start() + first, match.start() + last, _PHONE)


@functools.lru_cache(maxsize=4096)
def _phone_spans(text: str) -> list[tuple[int, int]]:
    """Return where in a few digits the numbers of the first region are that has any."""
    import phonenumbers  # deferred: takes 0.1 s

    for region in _REGIONS:
        numbers = list(phonenumbers.PhoneNumberMatcher(text, region))
        if numbers:
            return [(number.start, number.end) for number in numbers if not _is_fiction(number.raw_string)]
    return []


def _is_fiction(number: str) -> bool:
    return re.sub(r"[^0-9]", "", number)[-7:-2] == "55501"


_FINDERS: Mapping[str, Callable[[str], Iterator[_Match]]] = {
    "email": _find_emails, "ip": _find_ips, "phone": _find_phones,
}  # fmt: skip
# What can be replaced, in the order of the search.
KINDS = tuple(_FINDERS)
