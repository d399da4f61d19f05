"""Reads prompts from a file: one per line of plain text, or one per JSONL record."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipelines.errors import InputError
from pipelines.records.text_readers import replace_surrogates
from pipelines.storage.bounded import MAX_LINE_BYTES, numbered_lines
from pipelines.storage.compression import open_decompressed, strip_compression

_FIELDS = ("prompt", "text")


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a file, which may be compressed; blank lines are skipped.

    Records of `.jsonl` and `.ndjson` have a field `prompt`, else `text`. Raises InputError with the line number for
    invalid UTF-8 or JSON and for a record without prompt, and for a file without prompts.
    """
    is_jsonl = strip_compression(path).endswith((".jsonl", ".ndjson"))
    prompts = []
    for number, line in _lines(path):
        where = f"{path}:{number}"
        prompts.append(_parse_record(line, where) if is_jsonl else _decode(line, where))
    if not prompts:
        raise InputError(f"{path}: has no prompts; write one per line")
    return prompts


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the line numbers and lines that are not blank, without line ends."""
    with open_decompressed(path) as stream:
        for number, line in numbered_lines(stream):
            if len(line) >= MAX_LINE_BYTES:
                raise InputError(f"{path}:{number}: the line has {MAX_LINE_BYTES:,} bytes or more; shorten the prompt")
            # Only \n ends a line: form feeds and U+2028 may be part of a prompt.
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            if line.strip():
                yield number, line


def _parse_record(line: bytes, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: invalid JSON ({error})") from error
    for name in _FIELDS:
        if isinstance(record, dict) and isinstance(record.get(name), str):
            return str(replace_surrogates(record[name]))
    raise InputError(f"{where}: has no prompt; expected an object with a string {' or '.join(_FIELDS)}")


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 ({error})") from error
