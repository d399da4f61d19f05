"""Texts of JSON strings by columns, beside `json`."""

from __future__ import annotations

import json
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.kernels.byte_scan import BLOCK
from pipelines.algorithms.text.json_strings import text_column

_PIECES = st.sampled_from(
    [
        *"aZ9é日😀",
        '\\"',
        "\\\\",
        "\\/",
        "\\b",
        "\\f",
        "\\n",
        "\\r",
        "\\t",
        "\\u0041",
        "\\u00e9",
        "\\u65E5",
        "\\ud83d",
        "\\uDE00",
        "\\ud83d\\ude00",
        "\\uD83D",
        "\\u0000",
        "\\uffff",
    ]
)


@settings(deadline=None)  # the first example compiles the kernel
@given(st.lists(st.lists(_PIECES, max_size=12).map("".join), max_size=8))
def test_escapes_are_resolved_as_json_does(contents: list[str]) -> None:
    expected = [re.sub("[\ud800-\udfff]", "\ufffd", json.loads(f'"{content}"')) for content in contents]
    encoded = [content.encode() for content in contents]
    ends = np.cumsum([0, *(len(each) + 2 for each in encoded)])
    buffer = np.frombuffer(b"".join(b'"' + each + b'"' for each in encoded) + bytes(BLOCK), np.uint8)
    spans = np.stack([ends[:-1] + 1, ends[1:] - 1], axis=1).astype(np.int64)
    escaped = np.array(["\\" in content for content in contents], np.bool_)
    assert text_column(buffer, spans, escaped).to_pylist() == expected
    # Looking for escapes where there are none changes nothing.
    assert text_column(buffer, spans, np.ones(len(contents), np.bool_)).to_pylist() == expected
    raw = [content for content in contents if "\\" not in content]
    assert text_column(buffer, spans[~escaped], escaped[~escaped]).to_pylist() == raw
