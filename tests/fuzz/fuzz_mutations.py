"""Mutations of valid files, by bytes and by values of the JSON in them."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# No input is larger, so that a slow or large answer is the fault of the reader.
MAX_BYTES = 1 << 20

_NUMBERS = b"0 -1 1 255 65536 2147483648 4294967295 9223372036854775807 18446744073709551616 1e400 -0 nan 0x10".split()
_HUGE_NUMBER = b"9" * 5000
_BYTES = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n\n",
    b'"', b"\\ud800", b"\\u0000", b"'", b",", b":", b"=", b" " * 70_000, b"\xe2\x80\xa8", b"%00", b"../../", b"/",
    b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\x00", b"PAR1", b"PK\x03\x04",
)  # fmt: skip
_NESTED = (b"[", b'{"a":', b"<div>", b"(", b"a.", b"&amp;", b"[[a]]\n", b"1,")
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308, "", "x", "../x", "/etc/passwd", "\x00",
    "\ud800", "é" * 1000, "y" * 100_000, [], [1], [[]], {}, {"x": 1}, [None] * 5000, float("nan"), float("inf"),
)  # fmt: skip
_DIGITS = re.compile(rb"[0-9]+")
_VALUE_OF_LINE = re.compile(rb"(?m)(?<=[:=] )[^\r\n]+")
_WORD = re.compile(rb"[A-Za-z0-9_-]+")

Operator = Callable[[random.Random, bytes, Sequence[bytes], Sequence[bytes]], bytes]


def mutate(choice: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Return one of the seeds with 1 to about 8 random changes; `tokens` are words of the format."""
    data = choice.choice(seeds)
    if choice.random() < 0.5:
        data = _mutate_json(choice, data)
        if choice.random() < 0.5:
            return data[:MAX_BYTES]
    for _ in range(1 + min(7, int(choice.expovariate(0.7)))):
        data = choice.choice(_OPERATORS)(choice, data, seeds, tokens)[:MAX_BYTES]
    return data


def _range(choice: random.Random, data: bytes) -> tuple[int, int]:
    """Return a random range, more often a short one."""
    start = choice.randint(0, len(data))
    return start, min(len(data), start + int(2 ** choice.uniform(0, 12)))


def _flip_bits(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 8)) if data else 0):
        changed[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    return bytes(changed)


def _overwrite_integer(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Write a binary integer at an extreme of its type, as in a field of a length."""
    width = choice.choice((1, 2, 4, 8))
    value = choice.choice((0, 1, 127, 128, 2 ** (8 * width - 1), 2 ** (8 * width) - 1, 1 << 20, 1 << 31))
    number = (value % 2 ** (8 * width)).to_bytes(width, choice.choice(("little", "big")))
    # Headers and footers are where the lengths are.
    place = choice.choice(
        (choice.randint(0, len(data)), choice.randint(0, 64), max(0, len(data) - choice.randint(0, 64)))
    )
    return data[:place] + number + data[place + width :]


def _delete(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    start, stop = _range(choice, data)
    return data[:start] + data[stop:]


def _truncate(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    return data[: choice.randint(0, len(data))]


def _repeat(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    start, stop = _range(choice, data)
    times = min(choice.choice((2, 3, 10, 1000, 20_000)), 1 + MAX_BYTES // max(1, stop - start))
    return data[:start] + data[start:stop] * times + data[stop:]


def _splice(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    other = choice.choice(seeds)
    start, stop = _range(choice, other)
    place = choice.randint(0, len(data))
    return data[:place] + other[start:stop] + data[place if choice.random() < 0.5 else place + stop - start :]


def _insert_bytes(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    place = choice.randint(0, len(data))
    return data[:place] + choice.choice(_BYTES) + data[place + choice.choice((0, 0, 1, 4)) :]


def _insert_token(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    words = [match.span() for match in _WORD.finditer(data[:10_000])]
    start, stop = choice.choice(words) if words and choice.random() < 0.7 else (choice.randint(0, len(data)),) * 2
    return data[:start] + choice.choice(tokens or _BYTES) + data[stop:]


def _replace_number(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    return _replace_match(choice, data, _DIGITS, choice.choice((*_NUMBERS, _HUGE_NUMBER)))


def _replace_value(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Replace what follows `: ` or ` = ` on a line: a header of HTTP or WARC, or a key of TOML."""
    new = choice.choice(
        (*_NUMBERS, *_BYTES, *(tokens or (b"",)), b"[]", b"{}", b'""', b"true", b"1979-05-27", b"x" * 9999)
    )
    return _replace_match(choice, data, _VALUE_OF_LINE, new)


def _replace_match(choice: random.Random, data: bytes, pattern: re.Pattern[bytes], new: bytes) -> bytes:
    matches = [match.span() for match in pattern.finditer(data[:100_000])]
    if not matches:
        return data
    start, stop = choice.choice(matches)
    return data[:start] + new + data[stop:]


def _nest(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    place = choice.choice((0, choice.randint(0, len(data))))
    return data[:place] + choice.choice(_NESTED) * choice.choice((100, 2000, 100_000)) + data[place:]


def _change_lines(choice: random.Random, data: bytes, seeds: Sequence[bytes], tokens: Sequence[bytes]) -> bytes:
    """Exchange, repeat or remove a line."""
    lines = data.split(b"\n")
    first, second = choice.randrange(len(lines)), choice.randrange(len(lines))
    lines[first], lines[second] = choice.choice(
        ((lines[second], lines[first]), (lines[first],) * 2, (b"", lines[second]))
    )
    return b"\n".join(lines)


_OPERATORS: tuple[Operator, ...] = (
    _flip_bits, _flip_bits, _overwrite_integer, _delete, _truncate, _repeat, _splice, _insert_bytes, _insert_token,
    _replace_number, _replace_value, _nest, _change_lines,
)  # fmt: skip


def _mutate_json(choice: random.Random, data: bytes) -> bytes:
    """Replace, remove, add or copy a value of the JSON in a file; return other files as they are.

    The JSON is the whole file, one of its lines, or the header after its length in 8 bytes (safetensors).
    """
    length = int.from_bytes(data[:8], "little")
    if 0 < length <= len(data) - 8 and (changed := _changed_json(choice, data[8 : 8 + length])) is not None:
        return len(changed).to_bytes(8, "little") + changed + data[8 + length :]
    if (changed := _changed_json(choice, data)) is not None:
        return changed
    lines = data.split(b"\n")
    number = choice.randrange(len(lines))
    if (changed := _changed_json(choice, lines[number])) is not None:
        return b"\n".join([*lines[:number], changed, *lines[number + 1 :]])
    return data


def _changed_json(choice: random.Random, text: bytes) -> bytes | None:
    if text[:1] not in (b"{", b"["):
        return None
    try:
        holder = [json.loads(text)]
        for _ in range(choice.choice((1, 1, 1, 2, 3))):
            parent, key = choice.choice(list(_places(holder)))
            _change(choice, parent, key, [child for child, _ in _places(holder)])
        return json.dumps(holder[0]).encode()
    except (ValueError, RecursionError):
        return None


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every list and object in a value with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def _change(choice: random.Random, parent: Any, key: Any, others: Sequence[Any]) -> None:
    action = choice.random()
    if action < 0.15 and len(parent) > 1:
        del parent[key]
    elif action < 0.25 and isinstance(parent, dict):
        parent[choice.choice(("", "x", "\x00", "k" * 10_000, "__class__"))] = copy.deepcopy(parent[key])
    elif action < 0.4:
        parent[key] = copy.deepcopy(choice.choice(others))
    elif action < 0.5 and isinstance(parent[key], list) and len(parent[key]) < 1000:
        parent[key] = parent[key] * choice.choice((2, 100))
    elif action < 0.6 and isinstance(parent[key], str):
        parent[key] = parent[key][:-1] + choice.choice(("", "\x00", "/../x", "\ud800", " "))
    else:
        parent[key] = copy.deepcopy(choice.choice(_VALUES))  # a later change must not change the table
