"""Tokens shown so that nothing is lost or hidden, and the kinds that a person should see."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.algorithms.bpe.suspicious_tokens import KINDS, kind_of, shortened_runs, shown


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b" the", "␣the"),
        (b"\r\n\t x", "␍⏎⇥␣x"),
        (b"\xe2\x94", "\\xE2\\x94"),
        ("é—".encode() + b"\xc3", "é—\\xC3"),
        ("\u200b\u202e\x00".encode(), "\\u{200B}\\u{202E}\\u{0}"),
        ("\u0301a".encode(), "\\u{301}a"),
        ("a\u0301".encode(), "a\u0301"),
        ("\u00a0".encode(), "\\u{A0}"),
        (b"<script>", "<script>"),
        (b"", ""),
    ],
)
def test_tokens_are_formatted(token: bytes, expected: str) -> None:
    assert shown(token) == expected


@given(st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode)))
@example("\ud7ff\U0010ffff".encode())
def test_formatted_tokens_are_printable_and_on_one_line(token: bytes) -> None:
    text = shown(token)
    assert " " not in text
    assert text.isprintable()
    text.encode()
    assert kind_of(token) in {None, *KINDS}


def test_long_runs_are_abbreviated() -> None:
    assert shortened_runs("␣" * 80) == "␣ ×80"
    assert shortened_runs("|" + "-" * 29 + "|--") == "|- ×29 |--"
    assert shortened_runs("--------") == "--------"


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("the", None),
        (" Understand", None),
        ("\n\n", None),
        ("\t", None),
        (" naïve", None),
        ("日本", None),
        ("プロを使", None),
        (" \u200b", "controls"),
        ("\ufffd[", "controls"),
        ("\ue000", "controls"),
        ("Ã©", "misread"),
        ("â€™", "misread"),
        ("ÃÂÃÂ", "misread"),
        ("PRを", "mixed scripts"),
        ("Рrice", "mixed scripts"),
        (" " * 30, "whitespace"),
        ("\u00a0\u00a0", "whitespace"),
        ("-" * 12, "repetition"),
        (" " + "=-" * 8, "repetition"),
        ("aaaaaaaaaaaa", "repetition"),
        ("+------+-", "punctuation"),
        (" 20170", "numbers"),
        ("2017", None),
        ("SolidGoldMagikarp", "joined words"),
        ("JavaScript", None),
        ("rawdownloadcloneembedreportprint", "long words"),
    ],
)
def test_kinds(token: str, kind: str | None) -> None:
    assert kind_of(token.encode()) == kind


def test_kinds_of_bytes() -> None:
    assert kind_of("──".encode() + b"\xe2\x94") == "cut characters"
    assert kind_of(b" \xe2\x80") is None
    assert all(kind_of(bytes([byte])) is None for byte in range(256))
