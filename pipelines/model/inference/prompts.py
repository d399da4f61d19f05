"""Reads prompts from a file: one per line of plain text, or one per record."""

from __future__ import annotations

from pipelines.errors import InputError
from pipelines.records.reader import read_records, require_records

_FIELDS = ("prompt", "text")


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a file, which may be compressed; blank lines are skipped.

    Records have a field `prompt`, else `text`. Raises InputError with the line number for invalid UTF-8 or JSON and for
    a record without prompt, and for a file without prompts.
    """
    prompts = []
    for number, value in require_records(path, read_records(path)):
        # Only \n ends a line: form feeds and U+2028 may be part of a prompt.
        texts = [value.removesuffix("\n").removesuffix("\r")] if isinstance(value, str) else []
        if isinstance(value, dict):
            texts = [value[name] for name in _FIELDS if isinstance(value.get(name), str)]
        if not texts:
            raise InputError(f"{path}:{number}: has no prompt; expected an object with a string {' or '.join(_FIELDS)}")
        prompts.append(texts[0])
    if not prompts:
        raise InputError(f"{path}: has no prompts; write one per line")
    return prompts
