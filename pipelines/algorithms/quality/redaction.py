"""Replaces e-mail addresses, IP addresses and phone numbers in texts with placeholders.

The result depends on the text alone, and redacting it again changes nothing: what is reserved for examples is kept.
Searches begin with a set of characters or a literal, which `re` skips to fast; what is before it is checked after.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

SPAN_TYPE = pa.list_(pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())]))


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
    kind: str


# RFC 2606, 5737 and 3849, and the North American numbers for fiction.
_EMAIL, _IPV4, _IPV6 = ("email@example.com", "email"), ("192.0.2.1", "ip"), ("2001:db8::1", "ip")
_PHONE = ("+1-202-555-0100", "phone")


def redact(text: str, kinds: Collection[str]) -> tuple[str, list[Span]]:
    """Return a text with placeholders for what it has of some of `KINDS`, and where these are, in order."""
    matches: list[_Match] = []
    rest = text
    for kind in KINDS:
        if kind in kinds and (new := sorted(_FINDERS[kind](rest))):
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
    return pa.array([text for text, _ in results], texts.type), pa.array([spans for _, spans in results], SPAN_TYPE)


def _replace(text: str, matches: Sequence[_Match]) -> str:
    parts, position = [], 0
    for match in matches:
        parts += [text[position : match.start], match.placeholder]
        position = match.end
    return "".join([*parts, text[position:]]) if matches else text


# Also written as `%40` in URLs, as `[at]`, and in mailing lists as `<name at host.org>`.
_AT = re.compile(r"[@＠%\[({](?:(?<=[@＠])|(?<=%)40|(?<!%)[ ]?(?:[aAäÄ][tT]|@)[ ]?[\])}])")
_AT_WORDS = [re.compile(rf" {at} (?=[\w.-]+>|[\w-]+ (?:dot|DOT) )") for at in ("at", "AT")]
_DOT = re.compile(r"[.．]|[ ]?[\[({][ ]?(?:[dD][oO][tT]|[.])[ ]?[\])}][ ]?|[ ](?:dot|DOT)[ ]")
_LOCAL = re.compile(r"[^\W_][\w.+%'~-]*\Z")
_PASSWORD = re.compile(r"(?<=//)[^\s/:@]+:[^\s/@]+\Z")
_LABEL = re.compile(r"[^\W_]+(?:-+[^\W_]+)*")
_EXAMPLES = (".example.com", ".example.net", ".example.org")


def _find_emails(text: str) -> Iterator[_Match]:
    """Find addresses whose host has a public suffix, other than examples and accounts of SSH."""
    end = 0
    for at in sorted((at for form in (_AT, *_AT_WORDS) for at in form.finditer(text)), key=re.Match.start):
        is_plain = at[0][0] in "@＠%"
        before = text[max(end, at.start() - 65) : at.start()]  # at most 64 characters count
        local = _PASSWORD.search(before) or _LOCAL.search(before if is_plain else before.removesuffix(" "))
        first = at.end() + (not is_plain and text.startswith(" ", at.end()))
        host, size = _read_host(text[first : first + 253]) if local else ("", 0)
        if local and host:
            end, start = first + size, at.start() - len(before) + local.start()
            is_account = local[0] == "git" and text.startswith(("/", ":"), end)
            is_account |= text.endswith("ssh://", 0, start) and ":" not in local[0]
            if not is_account and not f".{host}".endswith(_EXAMPLES):
                yield _Match(start, end, *_EMAIL)


def _read_host(text: str) -> tuple[str, int]:
    """Return the host with a public suffix at the start of a text, and its length there; empty if there is none."""
    from pipelines.algorithms.web.urls import has_public_suffix  # deferred: the public suffix list takes 0.1 s

    labels: list[re.Match[str]] = []
    label = _LABEL.match(text)
    while label:
        labels.append(label)
        dot = _DOT.match(text, label.end())
        label = _LABEL.match(text, dot.end()) if dot else None
    while len(labels) > 1:
        host = ".".join(label[0].lower() for label in labels)
        if has_public_suffix(host):
            return host, labels[-1].end()
        labels.pop()  # in `name@host.org.Then`, a space is missing
    return "", 0


_ADDRESS_4 = re.compile(r"[0-9][0-9]{0,2}(?:\.[0-9]{1,3}){3}(?!\w|\.[0-9a-z]|-[A-Za-z])")
_ADDRESS_6 = re.compile(r":(?<=(?<![\w:.])[23][0-9A-Fa-f]{3}:)(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{1,4}(?![\w:]|\.\w)")
_VERSION = re.compile(r"(?i)(?:[\w.]|[a-z][/-]|\b(?:v|ver|versions?|release|build|firmware|section)[\s:.(]{1,3})\Z")
# Three parts of a version or of the number of a section are smaller, as are those of one address in 150.
_SMALL = 32
# The length of an address with leading zeros; shorter ones with them are more likely something else.
_PADDED = len("081.002.069.142")


def _find_ips(text: str) -> Iterator[_Match]:
    """Find addresses of the public Internet, other than networks and groups, and what is more likely a version."""
    for match in _ADDRESS_4.finditer(text):
        parts = [int(part) for part in match[0].split(".")]
        address = ".".join(map(str, parts)) if len(match[0]) == _PADDED else match[0]
        is_host = parts[0] < 224 and parts[3] and sorted(parts)[2] >= _SMALL and _is_public(address)
        if is_host and not _VERSION.search(text[max(0, match.start() - 12) : match.start()]):
            yield _Match(*match.span(), *_IPV4)
    for match in _ADDRESS_6.finditer(text):
        start = match.start() - 4
        if _is_public(text[start : match.end()]):
            yield _Match(start, match.end(), *_IPV6)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


# Seven digits or more, with up to three other characters between two of them, and not the number of an item before, or
# an IP address with leading zeros.
_NUMBER = re.compile(
    r"[+(0-9](?<![\w.,/=#$€£¥%&@+-][+(0-9])(?!(?<=[0-9])[0-9]{0,2}[.)] )"
    r"(?!(?<=[0-2])[0-9]{2}(?:\.[0-2][0-9]{2}){3}(?![0-9]))"
    r"(?:[ ()./\xa0\u200b\u2010-\u2015-]{0,3}+[0-9]){6,40}+"
)
_PHONE_WORD = re.compile(
    r"(?i)(?:(?:phone|fon|\bt[ée]l|fax|\bcall|mobil|\bcell|hotline|whatsapp|handy)\w{0,4}|(?<![\w-])(?-i:[TF]))"
    r"[\s:.)(/]{1,4}\Z"
)
# +44 20 7946 0018, not +1.23456789; (202) 456 1111; 202-456-1111.
_GROUPED = re.compile(
    r"\+[ (]*[1-9](?![0-9]*\.[0-9]+\Z)|\([2-9][0-9]{2}\)"
    r"|(?<![0-9])[2-9][0-9]{2}[^0-9]{1,3}[2-9][0-9]{2}[^0-9/]{1,2}[0-9]{4}(?![0-9])"
)
# 020 7946 0018, 0221/1773-1000, (07) 4000 8532, 01 45 67 89 10.
_WITH_ZERO = re.compile(
    r"(?=(?:[^0-9]*[0-9]){9})"
    r"(?:\(?0(?:[1-9][0-9]{1,3}|0[1-9][0-9]{0,2})[^0-9]|\(0[1-9]\)|0[1-9](?:[ .-][0-9]{2}){4}(?![0-9]))"
)
# Those of numbers without a country code, in the order of attempts.
_REGIONS: tuple[str, ...] = ("US", "GB", "DE", "FR", "AU", "IT", "ES", "NL", "CH", "AT", "BR", "IN")


def _find_phones(text: str) -> Iterator[_Match]:
    """Find valid numbers with a country code; others after a word for phone, or grouped as in some of `_REGIONS`."""
    # A placeholder is no part of a number, as the address that it replaces was not: `0100-192.0.2.1`.
    for match in _NUMBER.finditer(text.replace(_IPV4[0], "\0" * len(_IPV4[0]))):
        if _PHONE_WORD.search(text[max(0, match.start() - 24) : match.start()]):
            regions = _REGIONS
        elif _GROUPED.search(match[0]):
            regions = _REGIONS[:1]
        elif _WITH_ZERO.match(match[0]):
            regions = _REGIONS[1:]
        else:
            continue
        for start, end in _phone_spans(match[0], regions):
            yield _Match(match.start() + start, match.start() + end, *_PHONE)


@functools.lru_cache(maxsize=4096)
def _phone_spans(text: str, regions: Sequence[str]) -> list[tuple[int, int]]:
    """Return where in a few digits the numbers of the first region are that has any, without those for fiction."""
    import phonenumbers  # deferred: takes 0.1 s

    for region in regions:
        if numbers := list(phonenumbers.PhoneNumberMatcher(text, region)):
            return [(one.start, one.end) for one in numbers if not _is_fiction(one.number)]
    return []


def _is_fiction(number: Any) -> bool:
    return number.country_code == 1 and str(number.national_number)[3:8] == "55501"


_FINDERS: Mapping[str, Callable[[str], Iterator[_Match]]] = {
    "email": _find_emails, "ip": _find_ips, "phone": _find_phones,
}  # fmt: skip
# What can be replaced, in the order of the search.
KINDS = tuple(_FINDERS)
