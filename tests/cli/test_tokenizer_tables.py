"""What the terminal shows of a tokenizer's report card."""

from __future__ import annotations

import json
from typing import Any

import pytest

from webtext_cli.tables.tokenizer import print_report_card


def _entry(token: str) -> dict[str, Any]:
    return {"id": 300, "token": token, "bytes": 7, "count": 2, "held_out": 1, "when_merged": 9}


def _card(**changed: Any) -> dict[str, Any]:
    use = {"tokens": 40, "bytes_per_token": 2.4, "share_used": 0.5}
    step = {"step": 7, "pair": ["a", "b"], "count": 5, "found_pair": ["c", "d"], "found_count": 6, "is_right": False}
    return {
        "vocabulary": {"entries": 1000, "merges": 743},
        "corpus": {"bytes_per_token": 2.5, "fertility": 1.25, "renyi_efficiency": 0.41},
        "reference": {"name": "GPT-2", "entries": 50257, "bytes_per_token": 2.0, "fertility": 1.5}
        | {"renyi_efficiency": None, "held_out": use},
        "groups": [
            {"group": f"site{n}\x1b", "bytes_per_token": 2.0, "reference_bytes_per_token": 1.0}
            | {"bytes": 200, "tokens": 100, "reference_tokens": 200}
            for n in range(9)
        ],
        "held_out": use | {"was_trained_on": False},
        "rare": {"below": 100, "entries": 5, "single_bytes": 3, "never": 1, "listed": [_entry("␣rarest")]},
        "longest": [_entry("-" * 80)],
        "strange": [{"kind": "controls", "what": "Odd.", "entries": 12, "listed": [_entry("\\u{200B}")]}],
        "verification": {"checked": 2, "right": 1, "steps": [step, step | {"is_right": True}]},
        "run": {"peak_memory_bytes": 5_000_000, "seconds": {"count": 1.5}, "cores": 2},
    } | changed


def test_a_card_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_report_card(json.loads(json.dumps(_card())))
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["entries", "1,000", "50,257"] in lines
    assert "entries used, held out 50.0% 50.0%".split() in lines
    assert "Rényi efficiency, alpha 2.5 0.410 –".split() in lines
    assert [r"site4\x1b", "2.00", "1.00"] in lines
    # The groups are those of the sample and follow its figure.
    assert lines.index("bytes per token, sample 2.00 1.00".split()) + 1 == lines.index([r"site0\x1b", "2.00", "1.00"])
    assert "site5" not in shown
    assert "controls 12 (\\u{200B})" in shown
    assert "longest: - ×80" in shown
    assert "1 of 2 verified by recounting" in shown
    assert "merge 7 is WRONG: a + b is recorded with 5, but c + d occurs 6 times" in shown
    assert "peak memory 5 MB, count 1.5 s, cores 2" in shown
    assert len(lines) <= 25
    assert shown.replace("\n", "").isprintable()


def test_without_a_reference_or_held_out_text(capsys: pytest.CaptureFixture[str]) -> None:
    held_out = {"tokens": 0, "bytes_per_token": None, "share_used": None, "was_trained_on": True}
    rows = [{"group": "a", "bytes": 8, "tokens": 4, "bytes_per_token": 2.0, "reference_bytes_per_token": None}]
    print_report_card(_card(reference=None, held_out=held_out, groups=rows, strange=[], run={}))
    shown = capsys.readouterr().out
    assert "entries used, held out but trained on –" in " ".join(shown.split())
    assert "no text was held out of training" in shown
    assert "GPT-2" not in shown
    assert "run:" not in shown
