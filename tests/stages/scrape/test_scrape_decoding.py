"""Decoded blocks of lines against the definition, `parse_submission`: equal whatever a line contains."""

from __future__ import annotations

import io
import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.stages.scrape.submission import (
    BadLineError,
    Rejects,
    Submission,
    decode_lines,
    parse_submission,
    read_submissions,
)

_PLAIN = [
    ("id", '"7abc"'),
    ("created_utc", "1388534400"),
    ("url", '"http://example.com/page"'),
    ("domain", '"example.com"'),
    ("score", "7"),
    ("subreddit", '"news"'),
    ("title", '"A title"'),
    ("over_18", "false"),
    ("is_self", "false"),
    ("promoted", "null"),
    ("media", '{"a": [1, {"b": null}], "url": "http://other.com/"}'),
]
_KEYS = [key for key, _ in _PLAIN] + ["url_overridden_by_dest", "crosspost_parent_list", "name"]
# Keys that are nearly a needed one, or written so that only a decoder sees what they are.
_NEAR_KEYS = """
    ids i ID urls ur\\u006c \\u0069d created_utx xreated_utc created_ut url_overridden_by_desu crosspost_parent_lisT
    crosspost_parent is_salf over_19 promotex titel scor \\/ \\" \\ud83d author
""".split()
_SCALARS = """
    null true false NaN Infinity -Infinity 0 -0 1 -1 3 00 01 -01 +1 .5 5. - 1e 1e5 1E+5 1e-5 1.5e3 3.0 2.9 -0.0 0.0 1.00
    1388534400 1388534400.0 1388534400.5 13885344000e-1 1.3885344e9 253402300799 253402300799.0 253402300800
    253402300800.0 123456789012345678 1234567890123456789 -999999999999999999 9223372036854775807 9223372036854775808
    "1388534400" "1388534400.0" "1388534400.7" "-0" "007" "\\u0031" "" "-" "٣" "7" "1_000" "t3_9b" "t3_" "t3" "t"
    "1e9" "1E+3" "-1.5e1" "1e-5" "1e400" "+1e3" "e" "1e"
    "self.news" "self." "self" "selfhost.com" "\\u0073elf.news" "é" "日本" "😀" "\\ud83d\\ude00" "\\ud83d" "\\ude00"
    "\\ud83d\\ud83d\\ude00" "\\u0000" "\\n" "\\/\\"\\\\\\b\\f\\n\\r\\t" "\\x" "\\u12g4" "\\u123" "\\" "a\\" "a" "a""b"
    'a' [] {} [[]] [{}] [null] [,] [1,] {,} {"a":1,} {"a"} {"a":} {1:2} [1 2] [} {] ] } [1}
    [{"url":"http://parent.com/","is_self":true,"domain":"self.x"}] [{"url":null}] ["x"] nul tru falsy fals None
    "http://example.com/?a=1&amp;b=2" "http://example.com/\\u00e9" "http:\\/\\/example.com\\/"
""".split()
_LONG = [
    "9" * 300,
    "9" * 301,
    "-" + "1" * 400,
    "0." + "1" * 400,
    "1" + "0" * 20 + ".0",
    '"' + "x" * 200 + '"',
    '"' + "日" * 40 + '"',
    '"http://example.com/' + "a" * 5000 + '"',
    '"tab\there"',
    '"nul\x00here"',
    '"del\x7fhere"',
    "[ ]",
    "[ 1 , 2 ]",
    '{ "a" : { "b" : [ ] } }',
    *("[" * depth + "]" * depth for depth in (59, 60, 61, 70)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (59, 60, 61, 70)),
    '[{"a":[' * 35 + "]}]" * 35,
    "[" * 70,
    "[" * 20 + "]" * 19,
]
_VALUES = _SCALARS + _LONG
# Bytes that change what a line means, and some that are no UTF-8: half a character, an encoded surrogate, an overlong.
_BYTES = [bytes([byte]) for byte in b"\"\\{}[]:,-.0123eE+ \t\r\n\x00\x0b\x1f\x7ftfnu/'"] + [
    b"\x80",
    b"\xc3",
    b"\xff",
    b"\xed\xa0\xbd",
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"\xc0\xaf",
    b"\xf0\x9f\x98\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\\u",
    b"\\ud83d",
    b'""',
    b"\r\n",
    b"\n\n",
]
_SPACES = ["", "", "", " ", "  ", "\t", "\r", " \t\r "]
_ENDS = ["", "", "", "", "\r", " ", " \t", "x", "}", ",", "\0", "{}", " null", "\x0c"]


class _Written:
    """Takes the place of the shard of rejected lines."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


def _values(submission: Submission) -> tuple[Any, ...]:
    marks = (submission.is_self, submission.over_18 is True, submission.promoted is True)
    names = ("id", "created_utc", "url", "score", "subreddit", "title")
    return (*(getattr(submission, name) for name in names), *marks)


def _by_definition(line: bytes) -> tuple[Any, ...] | str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return "not_json"
    if not isinstance(record, dict):
        return "not_an_object"
    try:
        return _values(parse_submission(record))
    except BadLineError as error:
        return str(error)


def _check(data: bytes) -> None:
    """Read lines as a dump, in small and large blocks, and line by line."""
    lines = enumerate(data.split(b"\n"), 1)
    expected = {number: _by_definition(line) for number, line in lines if line and not line.isspace()}
    for block_bytes in (1, 1 << 20):
        rows: list[dict[str, Any]] = []
        rejects = Rejects("x", rows.append)
        results: dict[int, tuple[Any, ...] | str] = {}
        for numbers, submissions in read_submissions(io.BytesIO(data), rejects, block_bytes=block_bytes):
            results |= dict(zip(numbers, map(_values, submissions), strict=True))
        results |= {row["line"]: row["reason"] for row in rows}
        assert results == expected


def _object(pairs: list[tuple[str, str]], spaces: list[str]) -> str:
    """Return an object of keys and values that are written in JSON, with spaces wherever they may stand."""
    turn = iter(spaces * (len(pairs) * 4 + 3))
    inner = ",".join(f'{next(turn)}"{key}"{next(turn)}:{next(turn)}{value}{next(turn)}' for key, value in pairs)
    return next(turn) + "{" + inner + "}" + next(turn)


_TEXTS = st.text(st.characters(codec=None, exclude_categories=[]), max_size=40)
_STRINGS = st.builds(json.dumps, _TEXTS) | st.builds(
    lambda text: json.dumps(text, ensure_ascii=False), st.text(max_size=40)
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | _TEXTS, inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
_NUMBERS = (st.integers() | st.floats() | st.integers(0, 2 * 10**9)).map(json.dumps)
_ANY_VALUE = st.sampled_from(_VALUES) | _STRINGS | _NUMBERS | _JSON
_FIELD = st.tuples(st.sampled_from(_KEYS) | st.sampled_from(_NEAR_KEYS), _ANY_VALUE)


@st.composite
def _line(draw: st.DrawFn) -> bytes:
    """Return a line of a dump whose fields have drifted, and whose bytes may have been damaged."""
    pairs = list(_PLAIN)
    for key, value in draw(st.lists(_FIELD, max_size=4)):
        at = draw(st.integers(0, len(pairs)))
        pairs[at : at + draw(st.integers(0, 1))] = [(key, value)]
    spaces = draw(st.lists(st.sampled_from(_SPACES), min_size=1, max_size=3))
    line = (_object(pairs, spaces) + draw(st.sampled_from(_ENDS))).encode(errors="surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 3]))):
        at = draw(st.integers(0, len(line)))
        line = line[:at] + draw(st.sampled_from(_BYTES)) + line[at + draw(st.integers(0, 2)) :]
    return line[: draw(st.integers(0, len(line)))] if draw(st.integers(0, 9)) == 0 else line


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(_line(), min_size=1, max_size=6), st.booleans())
@example([b"\xef\xbb\xbf" + _object(_PLAIN, [""]).encode()], False)
@example([_object(_PLAIN, [""]).encode("utf-16-le")], True)
@example([_object(_PLAIN, [""]).encode() * 2], True)
@example([_object(_PLAIN, [""]).encode() * 2, b""], True)
@example([b'{"id": "abcd",', b'"created_utc": 1}{}'], True)
@example([b'{"id": "abcd",', b'"created_utc": 1}' + _object(_PLAIN, [""]).encode()], True)
def test_any_line_is_decoded_as_by_json(lines: list[bytes], ends: bool) -> None:
    _check(b"\n".join(lines) + b"\n" * ends)


def _mutated(chance: random.Random) -> bytes:
    pairs = list(_PLAIN)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        at = chance.randrange(len(pairs) + 1)
        key = chance.choice(_KEYS if chance.random() < 0.5 else _NEAR_KEYS)
        value = chance.choice(_VALUES if chance.random() < 0.5 else ["null", '"\\u00e9 \\ud83d"', "12", "[1]"])
        pairs[at : at + (chance.random() < 0.2)] = [(key, value)]
    if chance.random() < 0.2:
        chance.shuffle(pairs)
    line = (_object(pairs, chance.choices(_SPACES, k=3)) + chance.choice(_ENDS)).encode()
    for _ in range(chance.choice([0, 0, 0, 1, 4])):
        at = chance.randrange(len(line) + 1)
        line = line[:at] + chance.choice(_BYTES) + line[at + chance.randrange(3) :]
    return line[: chance.randrange(len(line) + 1)] if chance.random() < 0.1 else line


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_mutated_lines_agree(seed: int) -> None:
    generator = random.Random(seed)
    lines = [_mutated(generator) for _ in range(1500)]
    _check(b"\n".join(lines))
    # The lines are odd on purpose, and still many go either way.
    assert 0.05 < sum(decode_lines(line + b"\n") is not None for line in lines) / 1500 < 0.8


@pytest.mark.parametrize("key", _KEYS)
def test_every_field_with_every_value_agrees(key: str) -> None:
    others = [(name, value) for name, value in _PLAIN if name != key]
    lines = []
    for value in _VALUES:
        lines += [
            _object([*others, (key, value)], [""]),
            _object([(key, value), *_PLAIN], ["\t"]),
            _object([*_PLAIN, (key, value)], [""]),
        ]
    without_self = [(name, value) for name, value in others if name != "is_self"]
    lines += [_object([*without_self, (key, value)], [""]) for value in _VALUES]
    _check("\n".join(lines).encode(errors="surrogatepass"))


def test_a_line_cut_anywhere_agrees() -> None:
    line = _object([*_PLAIN, ("title", '"é \\ud83d\\ude00 😀"')], [" "]).encode()
    _check(b"\n".join(line[:size] for size in range(len(line) + 1)))
    _check(b"\r\n".join(line[size:] for size in range(len(line) + 1)))


@pytest.mark.parametrize(
    "changed",
    [
        [],
        [("created_utc", '"1388534400"')],
        [("created_utc", "1388534400.0")],
        [("score", "null")],
        [("url", "null"), ("domain", "null")],
        [("url_overridden_by_dest", '"http://edited.com/"')],
        [("crosspost_parent_list", "[]")],
        [("crosspost_parent_list", "null")],
        [("crosspost_parent_list", '[{"url": "http://parent.com/", "is_self": false, "score": 1}]')],
        [("title", '"A \\"quoted\\" \\ud83d\\ude00 title \\u2014 é"')],
        [("is_self", "null")],
        [("media", "[" * 60 + "]" * 60)],
    ],
)
def test_the_formats_of_dumps_use_the_fast_decoder(changed: list[tuple[str, str]]) -> None:
    fields = {**dict(_PLAIN), **dict(changed)}
    for space in ("", " "):
        for end in (b"\n", b"\r\n"):
            line = _object(list(fields.items()), [space]).encode() + end
            submissions = decode_lines(line)
            assert submissions is not None
            assert [_values(submission) for submission in submissions] == [_by_definition(line)]


def _real_lines(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data).read()
    return lzma.decompress(data) if path.suffix == ".xz" else data


@pytest.mark.parametrize(
    ("name", "lines", "fast"),
    [
        ("RS_v2_2005-06.xz", 103, None),
        ("RS_v2_2005-07.xz", 1079, None),
        ("submissions-2013.ndjson.zst", 97888, 97888),
        ("sample-2024.json", 31, 26),
    ],
)
def test_real_lines_agree(shared_data: Path, name: str, lines: int, fast: int | None) -> None:
    data = _real_lines(shared_data / "reddit" / name)
    content = [line + b"\n" for line in data.split(b"\n") if line]
    assert len(content) == lines
    if fast == lines:
        assert len(decode_lines(b"".join(content)) or []) == fast
    elif fast is not None:
        assert sum(decode_lines(line) is not None for line in content) == fast
    # Of the large one some of those that are odd and of the others; `test_scrape_real.py` counts them all.
    odd = [line for line in content if b"\\u" in line or not line.isascii()]
    _check(b"".join([*content[:600], *odd[:600]]))
