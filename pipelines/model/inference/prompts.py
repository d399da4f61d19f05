"""Reads prompts: one a line of plain text, or one a record of JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError
from pipelines.core.text_readers import replace_surrogates

_FIELDS = ("prompt", "text")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a file, which may be compressed; blank lines are left out.

    A record of `.jsonl` or `.ndjson` has its prompt in the field `prompt`, else `text`. Raises InputError, with the
    line, for what is not UTF-8, no JSON object, or has neither field, and for a file without a prompt.
    """
    as_records = strip_compression(path).endswith((".jsonl", ".ndjson"))
    prompts = []
    for number, line in _lines(path):
        place = f"{path}:{number}"
        prompts.append(_prompt_of_record(line, place) if as_records else _decoded(line, place))
    if not prompts:
        raise InputError(f"{path}: holds no prompt; write one a line")
    return prompts


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, without what ends them."""
    with open_decompressed(path) as stream:
        for number, line in enumerate(stream, 1):
            # Only \n ends a line: form feeds and U+2028 may stand within a prompt.
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if line.strip():
                yield number, line


def _prompt_of_record(line: bytes, place: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is not valid JSON ({error})") from error
    for name in _FIELDS:
        if isinstance(record, dict) and isinstance(record.get(name), str):
            return str(replace_surrogates(record[name]))
    raise InputError(f"{place}: has no prompt; each line needs an object with a text in {' or '.join(_FIELDS)}")


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: is not UTF-8 text ({error})") from error
