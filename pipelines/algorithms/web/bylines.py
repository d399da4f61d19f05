"""The names of authors in bylines, in the most frequent languages of Western Europe."""

from __future__ import annotations

import re

_BY = re.compile(
    r"\W*((written |posted |published )?by|von|par|por|door|autore?|author|auteur|text|di|de)\b\s*:?\s+", re.I
)
_URL = re.compile(r"https?://\S+")
_AND = re.compile(r"\s*[,;|/]\s*|\s+(?:and|und|et|y|e|&)\s+")
_PLACEHOLDERS = "admin|administrator|author|autor|name|unknown|redaktion|editor|guest|user|staff"
_NOT_A_NAME = re.compile(rf"www\.|[@©{{}}<>*?!:…]|\b\d|\.[a-z]{{2,4}}$|^\W*$|^({_PLACEHOLDERS})$", re.I)
_CAPITALIZED, _PARTICLE = r"[^\W\d_a-z][\w.'’-]", "(?:de|del|della|di|da|dos|du|la|le|van|von|der|den|bin|al) "
_PERSON = rf"{_CAPITALIZED}+(?: (?:{_PARTICLE})*{_CAPITALIZED}*){{1,3}}"
_PERSONS = re.compile(rf"{_PERSON}(?:(?:, | (?:and|und|et|y|e|&) ){_PERSON})*")
_BYLINE = re.compile(rf"\b(?:[Bb]y|BY|[Vv]on|VON|[Pp]or|Par|Text|Autore?|Author|Di)\b:?\s+({_PERSONS.pattern})")
_MAX_CHARACTERS, _MAX_WORDS, _MAX_TEXT = 60, 6, 500


def split_names(text: str) -> list[str]:
    """Return the names in a declared value or a byline, without placeholders such as "admin", addresses and dates."""
    names = _AND.split(_BY.sub("", _URL.sub("", text), count=1))
    return [name for name in names if 1 < len(name) <= _MAX_CHARACTERS and _is_name(name)]


def is_byline(text: str) -> bool:
    """Return whether a text consists of full names, with or without a "by"."""
    return bool(_PERSONS.fullmatch(_BY.sub("", text, count=1)))


def find_byline(text: str) -> str:
    """Return the names after the first "by" in the first 500 characters of a text, or ""; a line break ends a name."""
    lines = "\n".join(" ".join(line.split()) for line in text.split("\n") if not line.isspace())
    match = _BYLINE.search(lines[:_MAX_TEXT])
    return match[1] if match else ""


def _is_name(text: str) -> bool:
    return len(text.split()) <= _MAX_WORDS and not _NOT_A_NAME.search(text)
