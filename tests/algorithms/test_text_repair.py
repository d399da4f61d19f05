from __future__ import annotations

import pytest

from pipelines.algorithms.web.text_repair import fix_mojibake, repair_text


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("plain \u2019text\u2019\n\ttab", "plain \u2019text\u2019\n\ttab"),
        ("it\u00e2\u0080\u0099s\nsch\u00c3\u00b6n", "it\u2019s\nsch\u00c3\u00b6n"),
        ("it\u00e2\u0080\u0099s na\u00efve", "it\u2019s na\u00efve"),
        ("\u2018it\u00e2\u0080\u0099s\u2019\ud800", "\u2018it\u2019s\u2019"),
        ("a \u0096 b \u0093c\u0094", "a \u2013 b \u201cc\u201d"),
        ("a\x01b\x7fc\x81d", "abcd"),
        ("sy\u00adlla\u200bble \u202btext\u202c\ufeff \ufffc", "syllable text "),
        ("\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e", "\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e"),
        ("", ""),
    ],
)
def test_text_is_repaired(text: str, repaired: str) -> None:
    assert repair_text(text) == repaired


@pytest.mark.parametrize("text", ["Größe – naïve “quotes”", "日本語", "Ünïcödé ﬁne ＡＢＣ &amp; … ´", "Привет", ""])
def test_double_encoded_text_is_decoded_and_other_text_stays(text: str) -> None:
    assert fix_mojibake(text) == text
    assert fix_mojibake(text.encode().decode("latin-1")) == text
