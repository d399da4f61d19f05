"""The page of a tokenizer's report: complete, self-contained, and safe with any text in its entries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, BrowserPage, open_page
from page_reading import Page

from pipelines.reports.tokenizer import render_tokenizer_report

_EVIL = "<script>alert(1)</script>"


def _entry(token: str, **changed: Any) -> dict[str, Any]:
    return {"id": 300, "token": token, "bytes": 7, "count": 2, "held_out": 1, "when_merged": 9} | changed


def _report(**changed: Any) -> dict[str, Any]:
    """A report of 1,000 entries with a reference."""
    use = {"measured_on": "all words", "bytes": 100, "tokens": 40, "bytes_per_token": 2.5}
    use |= {"entries_used": 30, "share_used": 0.03003}
    figures = {"bytes_per_token": 2.5, "sample_bytes_per_token": 2.25, "fertility": 1.25, "held_out": use}
    return {
        "corpus": {"bytes": 1000, "words": 200, "distinct_words": 90},
        "tokenizer": {"name": "this tokenizer", "entries": 1000, "merges": 743, **figures},
        "reference": {"name": "GPT-2", "entries": 50257, **figures},
        "held_out_was_trained_on": False,
        "rare": {"below": 100, "entries": 5, "single_bytes": 3, "never": 1, "listed": [_entry("rarest")]},
        "unused": [_entry("unused")],
        "longest": [_entry("␣" * 80, bytes=80)],
        "suspicious": [{"kind": "controls", "what": "Odd.", "entries": 12, "listed": [_entry("\\u{200B}")]}],
        "run": {"peak_memory_bytes": 5_000_000, "seconds": {"count": 1.5}, "cores": 2},
    } | changed


def test_the_page_shows_the_figures() -> None:
    page = Page(render_tokenizer_report(_report()))
    for text in (
        "Bytes per token 2.50",
        "entries 1,000 50,257",
        "3.0% 30 of 999",
        "␣ ×80",
        "rarest",
        "unused",
        "peak memory 5 MB",
    ):
        assert text in page.text, text
    assert "12" in page.text.split("Controls: ")[1][:3]
    assert "was trained on" not in page.text


def test_nothing_is_loaded_from_anywhere() -> None:
    raw = render_tokenizer_report(_report())
    page = Page(raw)
    assert not any({"src", "srcset", "href", "action"} & set(attributes) for _, attributes in page.tags)
    assert {"link", "img", "iframe"}.isdisjoint({tag for tag, _ in page.tags})
    assert not re.search(r"url\(|@import", raw)
    assert any((attributes.get("content") or "").startswith("default-src 'none'") for _, attributes in page.tags)


def test_markup_in_texts_is_escaped() -> None:
    entry = _entry(_EVIL)
    report = _report()
    evil = _report(
        reference=report["reference"] | {"name": f'" onload="x{_EVIL}'},
        longest=[entry],
        suspicious=[{"kind": "controls", "what": _EVIL, "entries": 1, "listed": [entry]}],
        rare=report["rare"] | {"listed": [entry]},
        unused=[entry],
        run={_EVIL: _EVIL},
    )
    page = Page(render_tokenizer_report(evil))
    assert "b" not in {tag for tag, _ in page.tags}
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(_EVIL) >= 9


def test_unprintable_characters_are_escaped() -> None:
    odd = "\x1b[2Ja\x00\x9b\u202eb\ud800"
    report = _report()
    shown = render_tokenizer_report(_report(reference=report["reference"] | {"name": odd}, run={"stopped": odd}))
    assert shown.replace("\n", "").isprintable()
    assert shown.count(r"\x1b[2Ja\x00\x9b\u202eb\ud800") >= 3


def test_held_out_text_that_was_trained_on_is_marked() -> None:
    page = Page(render_tokenizer_report(_report(held_out_was_trained_on=True)))
    assert "but this tokenizer was trained on them" in page.text
    assert "(seen in training)" in page.text


def test_a_report_without_data() -> None:
    nothing = dict.fromkeys(("bytes_per_token", "entries_used", "share_used"))
    held_out = nothing | {"measured_on": "the sample", "bytes": 0, "tokens": 0}
    tokenizer = dict.fromkeys(("bytes_per_token", "sample_bytes_per_token", "fertility"))
    report = _report(
        corpus={"bytes": 0, "words": 0, "distinct_words": 0},
        tokenizer=tokenizer | {"name": "this tokenizer", "entries": 257, "merges": 0, "held_out": held_out},
        reference=None,
        unused=[],
        suspicious=[],
        run={},
    )
    page = Page(render_tokenizer_report(report))
    assert "There is no held-out text." in page.text
    assert "No entry looks like a trace of junk" in page.text


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_nothing_is_cut_off_in_a_browser(browser: BrowserPage, tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_tokenizer_report(_report()), encoding="utf-8")
    open_page(browser, path, width)
    assert browser.evaluate(CUT_OFF) == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
