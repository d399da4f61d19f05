"""Formats tokens for display, and classifies suspicious ones, which often come from junk in the corpus."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable

_MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_RUN = re.compile(r"(\S)\1{8,}")
_PLAIN = re.compile(r" ?[A-Za-z]?[a-z]*|[ -~]{1,5}| ?[0-9]{1,4}")
_OFTEN_WITHOUT_MEANING = {"Cc", "Cf", "Co", "Cn"}
_MIN_CUT_BYTES = 5
_MIN_RUN = 12
_MIN_PUNCTUATION = 7
_MIN_DIGITS = 5
_MIN_WORD = 20
_MIN_JOINTS = 2
# Scripts that are mixed in the same language.
_ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "BOPOMOFO": "CJK"}
_SCRIPTS = set(
    "LATIN GREEK CYRILLIC ARMENIAN HEBREW ARABIC SYRIAC THAANA DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU "
    "KANNADA MALAYALAM SINHALA THAI LAO TIBETAN MYANMAR GEORGIAN HANGUL ETHIOPIC CHEROKEE KHMER MONGOLIAN CJK".split()
)


def shown(token: bytes) -> str:
    """Return a token as one line of text: `␣` is a space, `⏎` a newline, `⇥` a tab, `\\xNN` a byte that is not UTF-8.

    Unprintable characters, and a combining mark at the start, are written as `\\u{N}`.
    """
    text = token.decode("utf-8", "surrogateescape")
    return "".join(_shown_character(character, at == 0) for at, character in enumerate(text))


def _shown_character(character: str, is_first: bool) -> str:
    if character in _MARKS:
        return _MARKS[character]
    if 0xDC80 <= ord(character) <= 0xDCFF:
        return f"\\x{ord(character) - 0xDC00:02X}"
    if not character.isprintable() or (is_first and unicodedata.combining(character)):
        return f"\\u{{{ord(character):X}}}"
    return character


def shortened_runs(text: str) -> str:
    """Abbreviate long runs of one character in the output of `shown`, which contains no spaces: `- ×80`."""
    return _RUN.sub(lambda run: f"{run[1]} ×{len(run[0])} ", text).strip(" ")


def kind_of(token: bytes) -> str | None:
    """Return the first of `KINDS` that matches a token; None if it is ordinary or a single byte."""
    if len(token) < 2:
        return None
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "cut characters" if len(token) >= _MIN_CUT_BYTES else None
    if len(text) < _MIN_RUN and _PLAIN.fullmatch(text):
        return None
    return next((kind for kind, (_, fits) in KINDS.items() if fits(text)), None)


def _has_controls(text: str) -> bool:
    return not (text.isprintable() and "�" not in text) and any(
        unicodedata.category(character) in _OFTEN_WITHOUT_MEANING or character == "�"
        for character in text
        if character not in _MARKS
    )


def _is_misread(text: str) -> bool:
    """Return whether a text is UTF-8 that was decoded as Windows-1252 or Latin-1: `Ã©`, `â€™`."""
    text = text.strip(" ")
    if text.isascii() or len(text) < 2:
        return False
    # Text that was misread repeatedly alternates `Ã` and `Â`, and cannot be restored.
    return set(text) <= set("ÃÂ") or any(_reads_back(text, encoding) for encoding in ("cp1252", "latin-1"))


def _reads_back(text: str, encoding: str) -> bool:
    try:
        return len(text.encode(encoding).decode()) < len(text)
    except UnicodeError:
        return False


def _mixes_scripts(text: str) -> bool:
    return not text.isascii() and len({script for character in text if (script := _script(character))}) > 1


def _script(character: str) -> str | None:
    if not character.isalpha():
        return None
    first = unicodedata.name(character, "").partition(" ")[0]
    script = _ONE_SCRIPT.get(first, first)
    return script if script in _SCRIPTS else None


def _is_repetition(text: str) -> bool:
    """Return whether a text repeats one to four characters: `--------`, `=-=-=-=-=-=-`, also after one space."""
    text = text.removeprefix(" ")
    return len(text) >= _MIN_RUN and any(text[period:] == text[:-period] for period in (1, 2, 3, 4))


# Each kind with its description, the most suspicious first.
KINDS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "controls": (
        "Control, format, private-use or unassigned characters, or U+FFFD, which replaces invalid bytes.",
        _has_controls,
    ),
    "misread": ("UTF-8 that was decoded as Windows-1252 or Latin-1.", _is_misread),
    "mixed scripts": ("Letters of two scripts in one token.", _mixes_scripts),
    "cut characters": (f"{_MIN_CUT_BYTES} or more bytes that start or end inside a character.", lambda _: False),
    "whitespace": (
        f"{_MIN_RUN} or more characters, or several or unusual kinds of white space.",
        lambda text: text.isspace() and (len(text) >= _MIN_RUN or not text.isascii() or len(set(text)) > 2),
    ),
    "repetition": (f"One to four characters repeated, {_MIN_RUN} or more in total.", _is_repetition),
    "punctuation": (
        f"{_MIN_PUNCTUATION} or more punctuation characters in a row.",
        lambda text: (
            len(text) >= _MIN_PUNCTUATION and not any(c.isalnum() or c.isspace() for c in text.removeprefix(" "))
        ),
    ),
    "numbers": (
        f"{_MIN_DIGITS} or more digits.",
        lambda text: len(text.strip(" ")) >= _MIN_DIGITS and text.strip(" ").isnumeric(),
    ),
    "joined words": (
        "Two or more capitals inside a word: identifiers in code, headings without spaces.",
        lambda text: sum(a.islower() and b.isupper() for a, b in itertools.pairwise(text)) >= _MIN_JOINTS,
    ),
    "long words": (
        f"{_MIN_WORD} or more letters.",
        lambda text: len(text.strip(" ")) >= _MIN_WORD and text.strip(" ").isalpha(),
    ),
}
