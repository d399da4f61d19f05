"""What the terminal shows of a tokenizer's report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from webtext_cli.commands.train_bpe import print_tokenizer_report


def _entry(token: str) -> dict[str, Any]:
    return {"id": 300, "token": token, "bytes": 7, "count": 2, "held_out": 1, "when_merged": 9}


def _report(**changed: Any) -> dict[str, Any]:
    figures = {"bytes_per_token": 2.5, "sample_bytes_per_token": 2.25, "fertility": 1.25}
    figures |= {"held_out": {"tokens": 40, "bytes_per_token": 2.4, "share_used": 0.5}}
    return {
        "tokenizer": figures | {"entries": 1000, "merges": 743},
        "reference": figures | {"name": "GPT-2\x1b", "entries": 50257, "bytes_per_token": 2.0, "fertility": None},
        "held_out_was_trained_on": False,
        "rare": {"below": 100, "entries": 5, "single_bytes": 3, "never": 1, "listed": [_entry("␣rarest")]},
        "longest": [_entry("-" * 80)],
        "suspicious": [{"kind": "controls", "what": "Odd.", "entries": 12, "listed": [_entry("\\u{200B}")]}],
        "run": {"peak_memory_bytes": 5_000_000, "seconds": {"count": 1.5}, "cores": 2},
    } | changed


def test_a_report_is_printed(terminal: pytest.CaptureFixture[str]) -> None:
    print_tokenizer_report(json.loads(json.dumps(_report())))
    shown = terminal.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["this", "tokenizer", r"GPT-2\u001b"] in lines
    assert ["entries", "1,000", "50,257"] in lines
    assert "bytes per token, corpus 2.50 2.00".split() in lines
    assert "entries used, held-out split 50.0% 50.0%".split() in lines
    assert "fertility, tokens per alphabetic word 1.250 –".split() in lines
    assert "suspicious: controls 12" in shown
    assert "peak memory: 5 MB, count: 1.5 s, cores: 2" in shown
    assert shown.replace("\n", "").isprintable()


def test_without_a_reference_or_held_out_text(capsys: pytest.CaptureFixture[str]) -> None:
    held_out = {"tokens": 0, "bytes_per_token": None, "share_used": None}
    tokenizer = _report()["tokenizer"] | {"held_out": held_out}
    print_tokenizer_report(
        _report(tokenizer=tokenizer, reference=None, held_out_was_trained_on=True, suspicious=[], run={})
    )
    shown = capsys.readouterr().out
    assert "entries used, held-out split (seen in training) –" in " ".join(shown.split())
    assert "optimistic" in shown
    assert "GPT-2" not in shown
    assert "run:" not in shown
