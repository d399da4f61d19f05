"""Wishes of owners in what a WARC file holds: counted, in the column `signals`, and honored on request."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from extract_run import HTML_HEADERS, html_page, rows, run, warc_bytes, write_pages
from local_web import HTML, Answer, LocalWeb
from quick_extractor import first_paragraph

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.stages.extract.extractors import EXTRACTORS
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch

pytestmark = pytest.mark.usefixtures("warm_processes")

TEXT = {"Content-Type": "text/plain"}
ROBOTS = (
    b"User-agent: GPTBot\nUser-agent: CCBot\nDisallow: /\n\n"
    b"User-agent: *\nDisallow: /private\nContent-Signal: ai-train=no"
)
SITE = ["content-signal:ai-train=no", "robots:CCBot", "robots:GPTBot"]


@pytest.fixture(autouse=True)
def quick_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRACTORS, "fast", first_paragraph)


def _fetch(folder: Path, urls: list[str], **settings: Any) -> Path:
    """Fetch a list of URLs into a folder and return it."""
    (folder / "urls.txt").write_text("\n".join(urls))
    config = FetchConfig(allow_private_addresses=True, per_host_delay=0.0, retries=0, **settings)
    options = RunOptions(make_executor(1))
    fetch(config, links=str(folder / "urls.txt"), output=str(folder / "fetch"), options=options)
    return folder / "fetch"


def _signals(output: Path) -> dict[str, Any]:
    return {str(row["url"]).split("/", 3)[3]: row["signals"] for row in rows(output, "documents")}


def _page(head: str = "") -> bytes:
    return html_page("a").replace("<head>", f"<head>{head}").encode()


def _site() -> dict[str, Any]:
    return {
        "http://a.example/robots.txt": Answer(ROBOTS, headers=TEXT),
        "http://a.example/plain": _page(),
        "http://a.example/header": Answer(_page(), headers={"Content-Type": HTML, "X-Robots-Tag": "noai"}),
        "http://a.example/meta": _page('<meta name="robots" content="noindex"><meta name="tdm-reservation" content=1>'),
        "http://a.example/text": Answer(b"plain text " * 20, headers={**TEXT, "TDM-Reservation": "1"}),
        "http://b.example/robots.txt": Answer(b"", 301, {"Location": "http://a.example/robots.txt"}),
        "http://b.example/moved": Answer(b"", 302, {"Location": "http://c.example/here"}),
        "http://b.example/stays": _page(),
        "http://c.example/robots.txt": Answer(b"User-agent: ClaudeBot\nDisallow: /here", headers=TEXT),
        "http://c.example/here": _page(),
        "http://d.example/free": _page(),
    }


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fetched")
    with LocalWeb(_site()) as web, web.as_proxy():
        urls = [url for url in _site() if not url.endswith(("robots.txt", "/here"))]
        return _fetch(folder, urls)


def test_signals_of_a_fetch_are_found_without_a_request(fetched: Path, tmp_path: Path) -> None:
    run(fetched, tmp_path / "out")
    assert _signals(tmp_path / "out") == {
        "plain": SITE,
        "header": sorted([*SITE, "noai:header"]),
        "meta": sorted([*SITE, "noindex:meta", "tdm-reservation:meta"]),
        "text": sorted([*SITE, "tdm-reservation:header"]),
        "stays": SITE,  # its robots.txt is that of a.example, to which it redirects
        "free": [],
        "moved": ["robots:ClaudeBot"],  # of the host where the page is
    }
    found = Counter(signal for signals in _signals(tmp_path / "out").values() for signal in signals)
    tally = json.loads((tmp_path / "out" / "report-00000.json").read_text())
    assert tally["counts"]["signals"] == found
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Wishes of owners" in page
    assert "robots:GPTBot" in page


@pytest.mark.parametrize(
    ("honor", "dropped"),
    [
        (("noai",), {"header": ("noai", "noai:header")}),
        (("noai,noindex",), {"header": ("noai", "noai:header"), "meta": ("noindex", "noindex:meta")}),
        (("noindex:header",), {}),
        (("tdm-reservation",), {"meta": ("tdm_reservation", "tdm-reservation:meta"),
                                "text": ("tdm_reservation", "tdm-reservation:header")}),
        (("robots:ClaudeBot",), {"moved": ("robots", "robots:ClaudeBot")}),
        (("robots:SomeBot", "robots:*", "noarchive"), {}),
        (("ai",), {"moved": ("robots", "robots:ClaudeBot")} | dict.fromkeys(
            ("plain", "header", "meta", "text", "stays"), ("robots", "robots:CCBot"))),
    ],
)  # fmt: skip
def test_pages_are_dropped_by_the_named_signals_only(
    fetched: Path, tmp_path: Path, honor: tuple[str, ...], dropped: dict[str, tuple[str, str]]
) -> None:
    summary = run(fetched, tmp_path / "out", honor=honor)
    drops = rows(tmp_path / "out", "dropped")
    assert {str(row["url"]).split("/", 3)[3]: (row["reason"], row["detail"]) for row in drops} == dropped
    assert summary.records_in == summary.records_out + sum(summary.dropped.values()) == 7


def test_an_agent_that_is_named_is_looked_up(fetched: Path, tmp_path: Path) -> None:
    run(fetched, tmp_path / "out", honor=("robots:gptbot-next",))  # the longest name that it begins with is GPTBot
    assert _signals(tmp_path / "out") == {"free": [], "moved": ["robots:ClaudeBot"]}


def test_an_unknown_signal_is_refused_before_anything_is_written(fetched: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--honor noia: unknown signal; did you mean noai"):
        run(fetched, tmp_path / "out", honor=("noia",))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("honor", "outcomes"),
    [
        ((), {}),
        (("noai", "tdm-reservation"), {"header": "noai", "meta": "tdm_reservation", "text": "tdm_reservation"}),
        (("robots:ClaudeBot",), {"moved": "robots"}),
        (("ai",), dict.fromkeys(("plain", "header", "meta", "text", "moved", "stays"), "robots")),
    ],
)
def test_fetch_honors_the_same_signals(tmp_path: Path, honor: tuple[str, ...], outcomes: dict[str, str]) -> None:
    site = _site()
    with LocalWeb(site) as web, web.as_proxy():
        urls = [url for url in site if not url.endswith(("robots.txt", "/here"))]
        found = {row["url"]: row["outcome"] for row in rows(_fetch(tmp_path, urls, honor=honor), "pages")}
        requested = {path.split("/", 3)[3] for path in web.paths()}
    expected = dict.fromkeys((url.split("/", 3)[3] for url in urls), "ok") | outcomes
    short = {str(url).split("/", 3)[3]: str(outcome).removeprefix("dropped.") for url, outcome in found.items()}
    assert short == expected
    # What robots.txt disallows is not requested.
    refused = {"plain", "header", "meta", "text", "stays"} if honor == ("ai",) else set[str]()
    assert requested.isdisjoint(refused)
    assert ("here" in requested) == (not {"ai", "robots:ClaudeBot"} & {*honor})


def test_fetch_refuses_unknown_signals_before_any_request(tmp_path: Path) -> None:
    with LocalWeb(_site()) as web, pytest.raises(UsageError, match="--honor noia: unknown signal"):
        _fetch(tmp_path, [web.url("/a")], honor=("noia",))
    assert web.requests == []


def _records(*names: str) -> tuple[bytes, list[int]]:
    contents = {
        "robots.txt": (ROBOTS, list(TEXT.items())),
        ".well-known/tdmrep.json": (
            b'[{"location": "/", "tdm-reservation": 1}]',
            [("Content-Type", "application/json")],
        ),
    }
    return warc_bytes([(f"http://a.example/{name}", *contents.get(name, (_page(), HTML_HEADERS))) for name in names])


@pytest.mark.parametrize("suffix", [".warc.gz", ".warc"])
def test_site_files_of_another_crawler_count_for_the_pages_after_them(tmp_path: Path, suffix: str) -> None:
    data, _ = _records("early", *(str(number) for number in range(9)), "robots.txt", ".well-known/tdmrep.json", "late")
    path = tmp_path / f"crawl{suffix}"
    path.write_bytes(data if suffix.endswith("gz") else gzip.decompress(data))
    summary = run(path, tmp_path / "out")
    signals = _signals(tmp_path / "out")
    assert signals["early"] == []
    assert signals["late"] == [*SITE, "tdm-reservation:file"]
    assert summary.dropped == {"robots_txt": 1, "not_html": 1}


def test_html_files_have_their_own_signals_only(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_bytes(_page('<meta name="GPTBot" content="noarchive">'))
    run(tmp_path / "a.html", tmp_path / "out")
    [document] = rows(tmp_path / "out", "documents")
    assert document["signals"] == ["noarchive:meta:GPTBot"]


def test_damaged_site_files_count_as_absent(tmp_path: Path) -> None:
    url, robots = (
        "http://a.example/page",
        ("http://a.example/robots.txt", b"\xff\x00" * 99, [("Content-Encoding", "gzip")]),
    )
    run(write_pages(tmp_path / "fetch", [[(url, _page(), HTML_HEADERS), robots]]), tmp_path / "out")
    assert _signals(tmp_path / "out") == {"page": []}


def test_the_columns_of_licenses(tmp_path: Path) -> None:
    by = "https://creativecommons.org/licenses/by/4.0/"
    (tmp_path / "a.html").write_bytes(_page(f'<link rel="license" href="{by}">'))
    (tmp_path / "b.html").write_bytes(_page())
    run([tmp_path / "a.html", tmp_path / "b.html"], tmp_path / "out")
    names = ("license", "license_url", "license_location")
    assert [tuple(row[name] for name in names) for row in rows(tmp_path / "out", "documents")] == [
        ("cc-by-4.0", by, "link"),
        (None, None, None),
    ]


def test_fetched_pages_are_kept_when_an_option_that_was_off_no_longer_exists(tmp_path: Path) -> None:
    with LocalWeb({"/a": _page()}) as web:
        folder = _fetch(tmp_path, [web.url("/a")])
        path = folder / "manifest.json"
        recorded = json.loads(path.read_text())
        del recorded["config"]["honor"]
        recorded["config"]["honor_noarchive"] = False
        path.write_text(json.dumps(recorded))
        before = len(web.requests)
        _fetch(tmp_path, [web.url("/a")])
        assert len(web.requests) == before
    assert pq.read_table(folder / "pages-00000.parquet").num_rows == 1
