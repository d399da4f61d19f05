from __future__ import annotations

import re
import sys
import types
import warnings
from pathlib import Path

import pytest

from benchmarks.extractor.pages import read_benchmark, word_f1
from pipelines.stages.extract import extractors
from pipelines.stages.extract.child import html_of
from pipelines.stages.extract.extractors import EXTRACTORS, extractor_version, newspaper_text, trafilatura_text

pytestmark = pytest.mark.usefixtures("warm_processes")

PARAGRAPH = "<p>{} The river rises in the hills above the town, and runs for many miles before it meets the sea.</p>"
ARTICLE = (
    "<html{lang}><head><title>Rivers of the north</title></head><body><article><h1>Rivers of the north</h1>"
    + "".join(PARAGRAPH.format(f"Paragraph {number}.") for number in range(8))
    + "{more}</article><footer>All rights reserved</footer></body></html>"
)


def mean_f1(name: str, folder: Path, step: int) -> float:
    scores = []
    for page in read_benchmark(folder, step):
        html = html_of(page.html, None)
        assert html is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in the child: parsers warn of odd pages
            scores.append(word_f1(EXTRACTORS[name](html, page.url).text, page.content))
    return sum(scores) / len(scores)


def test_the_metric():
    assert word_f1("", "") == 1.0
    assert word_f1("a", "") == word_f1("a", "b") == 0.0
    assert word_f1("A b, b!", "b a B") == 1.0
    assert word_f1("a b", "b c c c") == pytest.approx(2 / 6)


# The floors lie a little under what was measured on these very pages; a fall below one is a defect, or a change of
# the parser behind it that has to be looked at.
@pytest.mark.parametrize(
    ("name", "floor"), [("fast", 0.885), pytest.param("trafilatura", 0.80, marks=pytest.mark.slow)]
)
def test_quality_on_a_few_real_pages(shared_data, name, floor):
    assert mean_f1(name, shared_data / "pages" / "wcxb-dev", step=30) >= floor


@pytest.mark.slow
@pytest.mark.parametrize(("name", "floor"), [("fast", 0.897), ("trafilatura", 0.82), ("newspaper", 0.695)])
def test_quality_on_real_pages(shared_data, name, floor):
    assert mean_f1(name, shared_data / "pages" / "wcxb-dev", step=8) >= floor


@pytest.mark.parametrize("name", list(EXTRACTORS))
def test_the_article_is_extracted_without_boilerplate(name):
    extracted = EXTRACTORS[name](ARTICLE.format(lang="", more="").encode(), "http://example.org/rivers")
    assert extracted.title == "Rivers of the north"
    for number in range(8):
        assert f"Paragraph {number}. The river" in extracted.text
    assert "All rights reserved" not in extracted.text


@pytest.mark.parametrize("name", list(EXTRACTORS))
@pytest.mark.parametrize("html", [b"", b"<", b"no markup at all", b"<html></html>", b"<html><body></body></html>"])
def test_a_page_without_text_gives_an_empty_text(name, html):
    extracted = EXTRACTORS[name](html, None)
    assert extracted.text == ""


@pytest.mark.parametrize("name", list(EXTRACTORS))
def test_a_page_does_not_depend_on_the_pages_before_it(name):
    page = ARTICLE.format(lang="", more="").encode()
    assert EXTRACTORS[name](page, None) == EXTRACTORS[name](page, None) == EXTRACTORS[name](page, None)


def test_tables_become_lines_of_cells():
    table = "<table><tr><th>Name</th><th>Miles</th></tr><tr><td>Tees</td><td>85</td></tr></table>"
    extracted = trafilatura_text(ARTICLE.format(lang="", more=table + PARAGRAPH.format("After.")).encode(), None)
    assert "\nName\tMiles\nTees\t85\nAfter." in extracted.text
    assert "|" not in extracted.text


def test_a_vertical_bar_outside_a_table_is_kept():
    extracted = trafilatura_text(ARTICLE.format(lang="", more=PARAGRAPH.format("|a| or |b|")).encode(), None)
    assert "|a| or |b|" in extracted.text


@pytest.mark.parametrize("language", ["zh", "ja", "th", "ar", "ko", "xx", "en-US"])
def test_newspaper_reads_a_page_whose_language_needs_an_extra(language):
    extracted = newspaper_text(ARTICLE.format(lang=f" lang={language}", more="").encode(), "http://example.org/")
    assert "Paragraph 3. The river" in extracted.text


def test_newspaper_follows_no_refresh_and_fetches_no_images(monkeypatch):
    import requests

    def refuse(*_arguments, **_named):
        raise AssertionError("newspaper opened a connection")

    monkeypatch.setattr(requests.Session, "request", refuse)
    more = '<img src="http://example.org/a.png" width=900 height=600><meta http-equiv=refresh content="0; url=http://b.c/">'
    page = ARTICLE.format(lang="", more=more).encode()
    assert "Paragraph 3." in newspaper_text(page, "http://example.org/").text


def test_newspaper3k_has_everything_that_is_used(monkeypatch):
    """The adapter against a stand-in with the attributes of newspaper3k 0.2.8 that it touches, and no others."""

    class Config:
        def __init__(self) -> None:
            self.fetch_images = self.memoize_articles = True
            self.follow_meta_refresh = False
            self.language = "en"

    class Article:
        def __init__(self, url, title="", source_url="", config=None, **kwargs):
            self.url, self.config, self.title, self.text, self.html = url, config, title, "", ""

        def download(self, input_html=None, title=None, recursion_counter=0):
            assert input_html is not None, "this would go to the network"
            self.html = input_html

        def parse(self):
            assert not self.config.fetch_images
            assert not self.config.memoize_articles
            self.title, self.text = "T", self.html

    stand_in = types.ModuleType("newspaper")
    stand_in.Config, stand_in.Article = Config, Article  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "newspaper", stand_in)
    assert newspaper_text(b"<p>x</p>", None) == extractors.Extracted("T", "<p>x</p>")


def test_the_version_names_the_package():
    assert re.fullmatch(r"trafilatura \d+\.\d+.*", extractor_version("trafilatura"))
    assert re.fullmatch(r"newspaper[34]k \d+\.\d+.*", extractor_version("newspaper"))
