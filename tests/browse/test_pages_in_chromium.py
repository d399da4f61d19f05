"""The pages of `webtext browse` in Chromium: they fit, can be used by keys, and show hostile texts as texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, BrowserPage, resize, visit

pytest.importorskip("starlette", reason="needs the extra browse: pip install '.[browse]'")
import pyarrow as pa
import pyarrow.parquet as pq
from browser_client import TOKEN, serve_in_thread
from hostile_corpus import ARCHIVED, BENCHMARK_TEXT, PAYLOADS, build_hostile_corpus, documents, id_of
from small_web import words_text

from pipelines.records.schemas import DOCUMENT_SCHEMA

_EVIL, _ID = PAYLOADS[0], quote(id_of(0), safe="")
# Each page, and a text that it shows.
ADDRESSES = {
    "/": "extract",
    "/documents": _EVIL,
    f"/documents?domain={quote(_EVIL)}&sort=words": _EVIL,
    f"/document?id={_ID}": _EVIL,
    f"/document/tokens?id={_ID}": "script",
    f"/document/diff?id={_ID}&other={quote(id_of(100), safe='')}": _EVIL,
    "/dropped": _EVIL,
    f"/dropped?stage=extract&reason={quote(_EVIL)}&seed=1": _EVIL,
    "/domains": _EVIL,
    "/subreddits": _EVIL,
    "/clusters": _EVIL[:20],
    "/tokenizer": "entries",
    "/tokenizer?entry=300": "300",
    "/model": "model",
    "/search?q=planted": "planted = 1",
    f"/trace?text={quote(BENCHMARK_TEXT)}": "in 1 document",
    "/reports/dedup/report.html": _EVIL[:20],
    "/reports/overlap-report/report.html": BENCHMARK_TEXT[:20],
}
# Elements and attributes that no page of this server has, links to anything but http(s), and links that tell others
# where they were clicked.
_FOREIGN_MARKUP = """[...document.querySelectorAll("*")].filter((element) =>
  element.matches(`img, iframe, object, embed, base, audio, video, math, animate, foreignObject, plaintext, body style,
    svg script, svg style, svg [href], link:not([href="/style.css"]), meta[http-equiv=refresh], [style], [srcdoc],
    [formaction]:not([formaction^="/labels?"]), [autofocus], [background]`)
  || [...element.attributes].some((attribute) => attribute.name.startsWith("on"))
  || (element.matches("a, area") && !/^(https?)?:$/.test(element.protocol))  // ":" of an invalid URL
  || (element.matches("a, area") && element.host !== location.host && !element.relList.contains("noreferrer"))
  ).map((element) => element.outerHTML)"""
_SHOWN = """document.title + document.body.textContent
  + [...document.querySelectorAll("[title], [aria-label]")].map((one) => one.title + one.ariaLabel).join()"""
# Joiners and marks of direction stay in texts, since many scripts need them.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="session")
def site(chromium: tuple[BrowserPage, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The beginning of the addresses of the hostile corpus, in a folder of a hostile name."""
    corpus = build_hostile_corpus(tmp_path_factory.mktemp("corpus") / "<img src=x onerror=planted=1>")
    with serve_in_thread(str(corpus)) as address:
        chromium[0].goto(f"{address}/?token={TOKEN}")
        yield address


@pytest.fixture(scope="session")
def documents_site(chromium: tuple[BrowserPage, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The beginning of the addresses of the same documents as a file."""
    path = tmp_path_factory.mktemp("documents") / '"><svg onload=planted=1>.parquet'
    pq.write_table(pa.Table.from_pylist(documents(), DOCUMENT_SCHEMA), path)
    with serve_in_thread([str(path)]) as address:
        chromium[0].goto(f"{address}/?token={TOKEN}")
        yield address


def _check_layout(browser: BrowserPage) -> None:
    """Check that nothing is cut off in wide and narrow windows, light and dark."""
    for width, scheme in ((1200, "light"), (400, "dark")):
        resize(browser, width, scheme=scheme)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(CUT_OFF) == []
        assert browser.evaluate(OUTSIDE_OF_CHARTS) == []


def _check_texts(browser: BrowserPage, text: str) -> None:
    """Check that a page shows a text, that no text of the corpus is markup or has an effect, and none is invisible."""
    assert browser.evaluate("window.planted") is None
    assert browser.evaluate(_FOREIGN_MARKUP) == []
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.locator("main").count() == 1  # parts are not whole pages
    shown = browser.evaluate(_SHOWN)
    assert text in shown
    assert str(7 * 191) not in shown  # of a template
    assert _CONTROLS.findall(shown) == []


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_page_fits_and_shows_hostile_texts_as_texts(browser: BrowserPage, site: str, path: str) -> None:
    visit(browser, site + path)
    _check_texts(browser, ADDRESSES[path])
    if not re.match("/document/|/reports/", path):  # parts have no style of their own; tests/reports has the reports
        _check_layout(browser)


@pytest.mark.parametrize("path", ["/documents", f"/document?id={_ID}", "/domains"])
def test_a_file_of_hostile_documents(browser: BrowserPage, documents_site: str, path: str) -> None:
    visit(browser, documents_site + path)
    _check_texts(browser, ADDRESSES[path])
    _check_layout(browser)


@pytest.mark.parametrize("number", range(1, len(PAYLOADS)))
def test_the_page_of_a_document(browser: BrowserPage, site: str, number: int) -> None:
    visit(browser, f"{site}/document?id={quote(id_of(number), safe='')}")
    _check_texts(browser, words_text(number, 60)[:60])
    if number == ARCHIVED:  # whose page has all of them
        _check_texts(browser, _EVIL)
    _check_layout(browser)


@pytest.mark.skipif("WEBTEXT_AXE" not in os.environ, reason="WEBTEXT_AXE is not the path of axe.min.js of axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", [path for path in ADDRESSES if not path.startswith("/document/")])
def test_wcag(browser: BrowserPage, site: str, path: str, scheme: str) -> None:
    resize(browser, scheme=scheme)
    visit(browser, site + path)
    browser.evaluate(Path(os.environ["WEBTEXT_AXE"]).read_text(encoding="utf-8"))
    found = browser.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] })")
    problems = [
        (rule["id"], node["html"], node["failureSummary"]) for rule in found["violations"] for node in rule["nodes"]
    ]
    assert problems == []


@pytest.mark.parametrize("path", ["/documents", "/dropped", "/domains", "/clusters", "/tokenizer"])
def test_rows_are_reached_by_keys(browser: BrowserPage, site: str, path: str) -> None:
    visit(browser, site + path)
    focused = "[...document.querySelectorAll('a.row')].indexOf(document.activeElement)"
    for key, row in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
        browser.keyboard.press(key)
        assert browser.evaluate(focused) == row
    assert browser.evaluate("document.activeElement.matches(':focus-visible')")
    target = browser.evaluate("document.activeElement.href")
    with browser.expect_navigation():
        browser.keyboard.press("Enter")
    assert browser.url == target


def test_the_form_and_the_help_are_reached_by_keys(browser: BrowserPage, site: str) -> None:
    visit(browser, f"{site}/documents")
    browser.keyboard.press("?")
    assert browser.evaluate("document.querySelector('#keys').open")
    browser.keyboard.press("j")
    assert browser.evaluate("document.activeElement.closest('dialog') !== null")
    browser.keyboard.press("Escape")
    assert not browser.evaluate("document.querySelector('#keys').open")
    browser.keyboard.press("/")
    browser.keyboard.type("j?/")
    assert browser.evaluate("document.activeElement.value") == "j?/"


def test_a_key_works_before_the_focus_has_left_the_help(browser: BrowserPage, site: str) -> None:
    visit(browser, f"{site}/documents")
    browser.evaluate("""() => {
      const dialog = document.querySelector("#keys"), key = { key: "/", bubbles: true, cancelable: true };
      dialog.showModal();
      dialog.close();
      dialog.querySelector("button").dispatchEvent(new KeyboardEvent("keydown", key));
    }""")
    assert browser.evaluate("document.activeElement.matches('main input')")


def test_the_first_tab_leads_to_the_content(browser: BrowserPage, site: str) -> None:
    visit(browser, f"{site}/")
    browser.keyboard.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    browser.keyboard.press("Enter")
    assert browser.url == f"{site}/#main"


def test_a_drop_is_labelled_by_a_key(browser: BrowserPage, site: str) -> None:
    visit(browser, f"{site}/dropped?stage=fetch&reason={quote(_EVIL)}&seed=1")
    browser.keyboard.press("j")
    with browser.expect_navigation():
        browser.keyboard.press("w")
    assert "0 of 1" in browser.evaluate("document.body.innerText")


def test_the_longest_text_is_traced(browser: BrowserPage, site: str) -> None:
    visit(browser, f"{site}/trace")
    browser.fill("textarea", f"{BENCHMARK_TEXT} {'ש' * 20_000}"[:20_000])
    with browser.expect_navigation():
        browser.click("main form button")
    assert "in 1 document" in browser.evaluate("document.body.innerText")
