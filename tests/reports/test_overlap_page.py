"""The page of the overlap report: complete, self-contained, and safe with any text."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_reading import Page, render_figure
from small_overlap_report import LONG_TEXT, bare_report, benchmark, full_report, passage

from pipelines.reports.overlap import examples_chart, render_overlap_report, samples_chart
from pipelines.reports.overlap_text import COLUMNS, describe_options, percent, probability
from pipelines.reports.render import document_text

_EVIL = "<script>alert(1)</script>"
# Keys whose texts come from the report itself.
_OWN_TEXTS = {"method", "apostrophes", "letters", "lines"}


def _page(report: dict[str, Any]) -> Page:
    return Page(render_overlap_report(json.loads(json.dumps(report))))


def _cells(page: Page) -> list[str]:
    """Return the values by which cells are sorted, those of the main table first, row by row."""
    return [
        attributes["data-value"] or "" for tag, attributes in page.tags if tag == "td" and "data-value" in attributes
    ]


def _with_texts(value: Any, text: str, key: str = "") -> Any:
    """Return a report with all its texts replaced."""
    if isinstance(value, dict):
        return {name: _with_texts(item, text, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, text, key) for item in value]
    return text if isinstance(value, str) and key not in _OWN_TEXTS else value


def test_every_section_is_shown() -> None:
    page = _page(full_report())
    headings = ("Benchmarks", "wikitext2", "gsm8k", "shakespeare", "Boilerplate", "Certificate of the Bloom filter")
    headings += ("How much the options matter", "The model’s own samples", "Terms")
    assert len(page.all("h2")) == len(headings)
    for text in (
        *headings,
        "An overlap does not prove a leak",
        "probability of at most 9.6e-9",
        "remove-wikipedia: 8,013,769 documents",
    ):
        assert text in page.text, text


def test_options_are_explained() -> None:
    report = full_report()
    assert all(meaning for _, meaning in describe_options(report))
    text = _page(report).text
    assert "lines = cross n-grams cross line ends" in text
    assert "ignore-common = 10 n-grams in more than 10 documents are ignored" in text


def test_missing_sections_are_left_out() -> None:
    page = _page(bare_report())
    assert len(page.all("h2")) == 3
    assert {"svg", "nav", "details", "mark", "tfoot"}.isdisjoint({tag for tag, _ in page.tags})
    assert "(error bound 0)" in page.text
    assert "paper" not in page.text.lower()
    assert "own training split" not in page.text
    assert "None of its 8-grams is in the corpus." in page.text


def test_nothing_is_loaded_from_anywhere() -> None:
    raw = render_overlap_report(full_report())
    page = Page(raw)
    assert not any({"src", "srcset", "action"} & set(attributes) for _, attributes in page.tags)
    assert {"link", "img", "iframe"}.isdisjoint({tag for tag, _ in page.tags})
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp", raw)
    policies = [meta.get("content") for meta in page.all("meta")]
    assert any(policy and policy.startswith("default-src 'none'") for policy in policies)


def test_the_policy_admits_only_the_style_and_script_of_the_page() -> None:
    raw = render_overlap_report(full_report())
    [policy] = [meta.get("content") for meta in Page(raw).all("meta") if meta.get("http-equiv")]
    for tag in ("style", "script"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", raw, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert "unsafe" not in str(policy)
    assert not any(name == "style" for _, attributes in Page(raw).tags for name in attributes)


@pytest.mark.parametrize("evil", [_EVIL, f'"><img src=x onerror=alert(1)>{_EVIL}', f"' onclick='x' {_EVIL}"])
def test_markup_in_texts_is_escaped(evil: str) -> None:
    raw = render_overlap_report(_with_texts(full_report(), evil))
    page = Page(raw)
    assert raw.count("<script>") == 1
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(evil) >= 20


@functools.cache
def _plain_tags() -> list[str]:
    return [tag for tag, _ in Page(render_overlap_report(_with_texts(full_report(), "a"))).tags]


# Without line ends, since many of them would fold a passage.
@settings(max_examples=40)
@given(
    st.text(st.characters(codec=None, exclude_characters="\n\r"), max_size=40).filter(
        lambda text: text.lower() != "test"
    )
)
def test_any_text_gives_the_same_tags(text: str) -> None:
    """With any text, the page has the tags that it has with plain text, and can be encoded."""
    page = Page(raw := render_overlap_report(_with_texts(full_report(), text)))
    raw.encode()
    assert [tag for tag, _ in page.tags] == _plain_tags()
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_only_web_urls_are_links() -> None:
    urls = ["https://example.org/?q=\"'<b>", "HTTP://example.org/", "javascript:alert(1)", "data:text/html,x", None]
    urls += ["https://example.org/\u202egpj", " https://example.org/", "https://example.org/\ud800"]
    sources = [{"id": f"id {number}", "url": url} for number, url in enumerate(urls)]
    page = _page(bare_report(benchmarks=[benchmark("b", "test", 1.0, passages=[passage(sources=sources)])]))
    links = [link for link in page.all("a") if not (link["href"] or "").startswith("#")]
    assert [link["href"] for link in links] == urls[:2]
    assert all(link["rel"] == "noreferrer noopener" for link in links)
    for number in range(2, len(urls)):
        assert f"id {number}" in page.text


def test_the_table_compares_with_the_paper() -> None:
    page = _page(full_report())
    first, second = (_cells(page)[start : start + len(COLUMNS)] for start in (0, len(COLUMNS)))
    assert first[:7] == "82430 1.402378 1.26214 1.63 0.62 0.55 0.66".split()
    assert {"2000", "260", "41", "12", "140"} <= set(first)
    # Unknown values are not sorted as 0.
    assert second[:7] == ["82430", "0.0012", "0.00108", "", "", "", ""]
    assert "Mean of 3: 2 test, 1 not named 14.13 12.72 0.62 0.55" in page.text
    assert "The paper’s mean of six test sets 3.2 5.9" in page.text
    assert "covers 1 of these 3 benchmarks" in page.text
    assert "section 4, Table 6" in page.text
    assert "as --example document does" in page.text


def test_every_column_sorts_and_every_split_is_named() -> None:
    raw = render_overlap_report(full_report())
    heads = re.search(r'<table class="sortable main">.*?<tr>\s*<th(.*?)</tr>', raw, re.DOTALL)
    assert heads
    assert heads[1].count('aria-sort="none"') == heads[1].count('<button type="button">') == 2 + len(COLUMNS)
    rows = re.findall(r'<tr><th scope="row"><a href="#benchmark-\d">.*?</tr>', raw, re.DOTALL)
    assert [re.findall(r'<td class="text">(.*?)</td>', row) for row in rows] == [
        ["test"],
        ["test"],
        ["split not named"],
    ]


def test_the_mean_covers_only_test_splits() -> None:
    rows = [benchmark("a", "test", 2.0), benchmark("b", "train", 90.0), benchmark("c", "valid", 80.0)]
    assert "Mean of" not in _page(bare_report(benchmarks=rows)).text
    assert "Mean of 2 test splits 3.00" in _page(bare_report(benchmarks=[*rows, benchmark("d", "test", 4.0)])).text


def test_matching_words_are_marked_and_sources_linked() -> None:
    raw = render_overlap_report(bare_report(benchmarks=[benchmark("b", None, 1.0, passages=[passage()])]))
    marked = "<mark>the species is found in the coastal waters of south eastern Australia</mark>"
    assert f"As the guide to the reserve says, {marked}, and is harmless" in raw
    assert 'title="doc-17" rel="noreferrer noopener">https://example.org/wildlife/sharks?page=2</a>' in raw
    assert "<b>12 words</b> · wiki.test.txt:1204 · example 1,203 · in " in raw
    assert "<details" not in raw


def test_many_passages_are_folded() -> None:
    passages = [passage(text=LONG_TEXT), *[passage()] * 8]
    raw = render_overlap_report(bare_report(benchmarks=[benchmark("b", None, 1.0, passages=passages)]))
    assert re.findall(r"<mark>(.*?)</mark>", raw, re.DOTALL)[0] == LONG_TEXT
    assert "<summary>4 more passages</summary>" in raw
    assert '<ol class="passages" start="6">' in raw


def test_document_text_keeps_lines_but_escapes_directional_controls() -> None:
    assert document_text("a\r\nb\rc\td\u200d\u00a0é") == "a\nb\nc\td\u200d\u00a0é"
    assert document_text("\x1b\x00\u202e\ud800\u2066<") == r"\x1b\x00\u202e\ud800\u2066&lt;"


def test_examples_that_are_too_short_are_counted() -> None:
    page = _page(full_report())
    assert (
        "1,600 of 1,860 examples (86.0%) share no 8-gram with the corpus. 140 more examples are too short" in page.text
    )
    all_short = benchmark("b", "test", 0.0, examples=3, too_short=3, ngrams=0, histogram=[0] * 21)
    assert "0 of 0 examples share no 8-gram" in _page(bare_report(benchmarks=[all_short])).text


def test_bar_heights_are_proportional_to_counts() -> None:
    page = Page(render_figure(examples_chart([7, *[0] * 9, 4, *[0] * 9, 2], 3)))
    bars = zip(page.numbers("rect", "x"), page.numbers("rect", "height"), strict=True)
    (half, half_height), (whole, whole_height) = bars
    assert (half, whole) == (45.38, 95.38)
    assert half_height == 2 * whole_height
    assert "over 45% and up to 50%: 4; over 95% and up to 100%: 2" in page.text
    assert not examples_chart([9, *[0] * 20], 3).shapes


@given(st.lists(st.integers(0, 10**9), min_size=21, max_size=21))
def test_bars_stay_inside(histogram: list[int]) -> None:
    page = Page(render_figure(examples_chart(histogram, 8)))
    columns = [page.numbers("rect", name) for name in ("x", "y", "width", "height")]
    for x, y, width, height in zip(*columns, strict=True):
        assert 0 <= x <= x + width <= 100
        assert 0 <= y <= y + height <= 126.1


def _samples_page(samples: dict[str, Any]) -> Page:
    return Page(render_figure(samples_chart(samples)))


def test_the_curves_of_samples() -> None:
    samples = full_report()["samples"]
    page = _samples_page(samples)
    lines = [line["points"] or "" for line in page.all("polyline")]
    assert len(lines) == 2
    heights = [float(place.split(",")[1]) for place in lines[1].split()]
    assert heights == sorted(heights, reverse=True)
    assert "The axis ends at 50%" in page.text
    assert "The axis ends at 10%" in _samples_page(samples | {"held_out": samples["samples"]}).text
    assert len(_samples_page(samples | {"held_out": None}).all("polyline")) == 1
    none = samples["samples"] | {"examples": 0, "cumulative": []}
    assert "No data." in _samples_page({"samples": none, "held_out": None}).text
    far = samples["samples"] | {"cumulative": [0.0] * 100 + [1.0]}
    assert "The axis ends" not in _samples_page({"samples": far, "held_out": None}).text


def test_scores() -> None:
    text = _page(full_report()).text
    assert "accuracy 0.632 2,000 0.629 1,600 0.71 260 0.55 140 -0.003" in text
    assert "perplexity 8.6 2,000 8.7 2,000 – 0 – 0 +0.1" in text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "0 of 300,000,000 random n-grams were found, so the false-positive rate is below 1e-8"),
        ({"probes": 10**6, "upper_bound": 3e-6}, "that takes about 300,000,000 random n-grams without a hit"),
        ({"found": 1, "upper_bound": 4.7e-6}, "1 of 300,000,000 random n-grams was found"),
        ({"found": 2, "upper_bound": 6.3e-6}, "does not prove the target on its own"),
        ({"error_bound": 2e-8}, "its false-positive rate exceeds the target"),
    ],
)
def test_a_certificate_states_what_is_proved(changed: dict[str, Any], text: str) -> None:
    report = full_report()
    assert text in _page(report | {"certificate": report["certificate"] | changed}).text


def test_sensitivity_begins_with_its_conclusion_and_marks_this_report() -> None:
    report = full_report()
    raw = render_overlap_report(report)
    assert raw.count('<tr class="this">') == 1
    conclusion = "combinations of options, no share of positions changes by more than 38.44 percentage points."
    assert conclusion in raw
    assert raw.index(conclusion) < raw.index('<tr class="this">')
    assert "wikitext2/test: from 0.09% (n = 13, apostrophes drop, letters ascii, lines stop) to 1.40% (n = 8, " in raw
    assert "are not among these rows" in render_overlap_report(report | {"n": 5})
    same = copy.deepcopy(report["sensitivity"])
    for setting in same:
        setting["benchmarks"] = report["sensitivity"][0]["benchmarks"]
    assert "wikitext2/test: 1.40% with all options." in render_overlap_report(report | {"sensitivity": same})


def test_boilerplate() -> None:
    text = _page(full_report()).text
    assert "all rights reserved no part of this publication 120,034 130,001 wikitext2/test, shakespeare" in text
    assert "37 distinct 8-grams in more than 10 documents were excluded from the figures" in text
    assert "of the benchmarks, at 1,204 positions" in text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0.00"), (0.001, "<0.01"), (0.006, "0.01"), (100.0, "100.00")]
)
def test_percentages(value: float | None, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1e-8, "1e-8"), (9.6e-9, "9.6e-9"), (9.99e-9, "1e-8"), (0.01, "0.01"), (1.0, "1")]
)
def test_probabilities(value: float, text: str) -> None:
    assert probability(value) == text
