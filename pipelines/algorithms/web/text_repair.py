"""Repair of text: UTF-8 that was decoded by another encoding (mojibake), by ftfy, and characters that nobody sees."""

from __future__ import annotations

import re

# A text does not contain these controls; windows-1252, or UTF-8 read as Latin-1, does.
_C1 = re.compile("[\x80-\x9f]")
_LATIN_1 = re.compile("[\x80-\xff]+")
# Controls, soft hyphen, zero width space, marks and overrides of direction, lone surrogates, byte-order mark, replaced
# objects.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffc\ufffe\uffff]"
)

_SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Return a text with U+FFFD for each unpaired surrogate, which JSON can express and UTF-8 cannot."""
    if text.isascii() or not _SURROGATES.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def repair_text(text: str) -> str:
    """Return a text without invisible characters and surrogates; lines with controls of Latin-1 are decoded again."""
    if not _INVISIBLE.search(text):
        return text
    if _C1.search(text):
        text = "\n".join(_fix_line(line) if _C1.search(line) else line for line in text.split("\n"))
    return _INVISIBLE.sub("", text)


def _fix_line(line: str) -> str:
    try:
        return _LATIN_1.sub(lambda characters: characters[0].encode("latin-1").decode(), line)
    except UnicodeDecodeError:  # ftfy takes 1 ms per 1,000 characters
        return fix_mojibake(line)


def fix_mojibake(text: str) -> str:
    """Return a text whose lines ftfy decodes again where they look like UTF-8 in another encoding."""
    import ftfy

    config = ftfy.TextFixerConfig(
        unescape_html=False, remove_terminal_escapes=False, fix_latin_ligatures=False, fix_line_breaks=False,
        fix_character_width=False, uncurl_quotes=False, normalization=None, explain=False,
    )  # fmt: skip
    return ftfy.fix_text(text, config)
