"""The pages of fine-tuning: what is next to each other, and nothing is cut off or executed in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, BrowserPage, open_page
from page_reading import Page

from pipelines.reports.finetuning import render_finetuning_page, render_sweep_page

LONG = "ein_sehr_langes_Wort_ohne_Leerzeichen_" * 8
HOSTILE = f"<img src=x onerror=alert(1)> \u202eevil\u202c \x1b[31m مرحبا {LONG}\nanother text"
RECIPE = {"steps": 20, "epochs": 2, "batch_size": 4, "grad_clip": 1.0}
ABOUT = {"title": "Training", "parameters": 1000, "vocab_size": 303, "facts": {"train": 40}, "recipe": RECIPE}
PUBLISHED = {
    "value": 81.25, "origin": "a paper, table 4", "note": "test set",
}  # fmt: skip


def figure(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": value, "error": 0.02, "low": 0.4, "high": 0.6, "chance": 0.5, "examples": 1200}


def written_page(labels: bool = True) -> str:
    results = {
        "task": "made-up <b>",
        "finetune": {"labels": {"value": ["entailment", "contradiction|conflict"]}} if labels else {},
        "metrics": [figure("matched accuracy", 0.75), figure("mismatched accuracy", 0.5)],
        "published": {"matched accuracy": {"Some model": PUBLISHED}, "f1": {"Another": PUBLISHED}},
        "dropped": {"no_label": 1234},
    }
    names = ("entailment", "contradiction") if labels else ("1.5", "4")
    scores = {"nll": 0.1, "confidence": 0.875} if labels else {"squared_error": 6.25}
    examples = [
        {"part": part, "place": f"{LONG}:1", "label": names[number % 2], "predicted": names[number % 3 == 0], **scores}
        for part in ("matched", "mismatched")
        for number in range(12)
    ]
    worst = [{**examples[0], "text": HOSTILE}] * 3
    metrics = [{"step": step, "loss": 2.0, "learning_rate": 1e-5, "gradient_norm": 1.0} for step in range(21)]
    for step, score in ((0, -0.25), (10, 0.5), (20, 0.75)):
        metrics[step] |= {"held_out_loss": 1.0, "held_out_score": score}
    timing = [{"step": step, "seconds": 0.1, "tokens_per_second": 500, "utilisation": None} for step in range(1, 21)]
    return render_finetuning_page(results, examples, worst, metrics, timing, ABOUT)


def written_sweep(steps: tuple[int | None, ...] = (100, 200, 400)) -> str:
    rows = [
        {"step": step, "name": name, "value": 0.7, "values": [0.7, 0.6, 0.8], "chance": 0.5,
         "scaled": [0.64, 0.32, 0.96] if name == "accuracy" else None}
        for step in steps for name in ("accuracy", "f1")
    ]  # fmt: skip
    published = {"accuracy": {"Some model": PUBLISHED}}
    return render_sweep_page({"task": "cola", "seeds": [0, 1, 2], "published": published, "metrics": rows})


def test_figures_are_next_to_published_ones_of_the_same_metric() -> None:
    text = Page(written_page()).text
    assert "matched accuracy 0.75 0.02 0.4 0.6 0.5 1,200" in text
    assert "matched accuracy Some model 75 81.25 a paper, table 4 test set" in text
    assert "Another" not in text
    assert "no_label 1,234" in text
    assert "made-up <b>" in text


def test_labels_have_a_matrix_by_part_and_numbers_a_plot() -> None:
    text = Page(written_page()).text
    assert text.count("Labels and predictions mismatched") >= 1
    assert "contradiction 4 2" in text  # 6 examples of this label, of which numbers 3 and 9 are right
    numbers = Page(written_page(labels=False))
    assert "Labels and predictions" not in numbers.text
    assert "Squared error" in numbers.text
    assert "12 of 12 examples." in numbers.text


def test_texts_are_escaped() -> None:
    written = written_page()
    assert "<img" not in written
    assert not {"\u202e", "\x1b"} & set(written)
    assert r"\u202eevil" in Page(written).text


def test_a_sweep_shows_the_median_all_values_and_a_curve_by_metric() -> None:
    page = Page(written_sweep())
    assert "accuracy 400 0.7 0.5 0.7, 0.6, 0.8" in page.text
    assert page.text.count("Against training steps.") >= 2
    assert "chance" in page.text
    assert "70 81.25 a paper" in page.text
    without = Page(written_sweep((None,)))
    assert "accuracy 0.7 0.5 0.7, 0.6, 0.8" in without.text
    assert not without.all("svg")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_nothing_is_cut_off_in_a_browser(browser: BrowserPage, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "finetune.html"
    for written in (written_page(), written_page(labels=False), written_sweep()):
        path.write_text(written, encoding="utf-8")
        open_page(browser, path, width, 900, scheme)
        assert browser.evaluate(CUT_OFF) == []
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
