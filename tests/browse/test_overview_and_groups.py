"""The overview of `webtext browse`, and its tables of domains, subreddits and clusters."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from browser_client import open_client
from starlette.testclient import TestClient

from pipelines.browse import site
from pipelines.build import StageStatus
from pipelines.engine.folder_lock import folder_lock
from webtext_cli.main import main

_HOSTILE = "<script>alert(1)</script>\"' onload=x \u202eevil"


def _text(seed: int) -> str:
    source = random.Random(seed)
    return " ".join(
        source.choice("the of and to in that is was he for it with as his on be at by".split()) for _ in range(120)
    )


def _rows() -> Iterator[dict[str, Any]]:
    for number in range(4):
        yield {"id": f"a{number}", "url": f"https://www.alpha.com/{number}", "subreddits": ["science", "news"]}
    for number in range(3):
        yield {"id": f"b{number}", "url": f"https://copies.org/{number}", "subreddits": ["news", "news"]}
    yield {"id": "c", "url": "https://copies.org/near", "subreddits": ["news"], "text": _text(3) + " end"}
    yield {"id": "h", "url": "https://hostile.net/", "subreddits": [_HOSTILE], "text": _text(8)}
    yield {"id": "d", "text": _text(9)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose dedup has read nine documents: copies.org repeats what alpha.com has."""
    folder = tmp_path_factory.mktemp("groups") / "corpus"
    folder.mkdir()
    documents = folder / "docs.jsonl"
    documents.write_text("".join(json.dumps({"text": _text(int(row["id"][1:] or 0)), **row}) + "\n" for row in _rows()))
    assert main(["dedup", "--corpus", str(folder), str(documents), "--workers", "1", "-q"]) == 0
    return folder


@pytest.fixture(scope="module")
def client(corpus: Path) -> TestClient:
    return open_client(str(corpus))


def _table(page: str) -> list[list[str]]:
    """Return the cells of the rows of a page's table, without markup; of a first cell with several lines, the first."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("<tr>")[1:]]
    return [[re.sub(r"<small>.*</small>|<[^>]*>", "", cell, flags=re.DOTALL).strip() for cell in row] for row in rows]


def _get(client: TestClient, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return answer.text


def test_the_overview_shows_what_is_left_and_links_to_reasons_and_reports(client: TestClient) -> None:
    page = _get(client, "/")
    assert "dedup: 10 documents → 6 documents" in page
    assert 'href="/dropped?stage=dedup&amp;reason=exact_duplicate"' in page
    assert 'href="/reports/dedup/report.html"' in page
    assert client.get("/reports/dedup/report.html").status_code == 200
    assert '<form class="filter" action="/document">' in page
    # Nothing changes, so nothing is loaded again.
    assert "data-every" not in page


def test_the_funnel_begins_with_submissions_of_which_none_are_listed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrape = StageStatus("scrape", "scrape", "done", 515, 364, {"low_score": 40, "self_post": 111})
    tokens = StageStatus("tokenize", "tokenize", "done", 9, 9, counts={"train_tokens": 7000.0, "held-out_tokens": 51.0})
    described = {"stages": [scrape, tokens], "runs": {}, "pages": {}, "evaluated": []}
    monkeypatch.setattr("pipelines.browse.overview.describe_corpus", lambda corpus: described)
    page = _get(client, "/")
    assert "scrape: 515 submissions → 364 links; low_score: 40</title>" in page
    assert "tokenize: 9 documents → 7,051 tokens" in page
    assert "self_post&nbsp;111, low_score&nbsp;40" in page
    assert "/dropped?" not in page


def test_a_running_stage_is_shown_with_its_progress_and_loaded_again(tmp_path: Path) -> None:
    folder = tmp_path / "corpus" / "extract"
    with folder_lock(str(folder)):
        progress = {"label": "extract: pages", "done": 30, "total": 120, "unit": "pages", "seconds": 10.0}
        (folder / ".progress.json").write_text(json.dumps({"run": {}, "progress": progress}))
        page = _get(open_client(str(tmp_path / "corpus")), "/")
    assert "extract: pages: 30 of 120 pages, 3 pages/s, 30.0 s left (process" in page
    assert 'data-load="/" data-every="5000"' in page
    assert "No stage has finished yet." in page


def test_damaged_stale_and_interrupted_stages_are_explained(tmp_path: Path) -> None:
    documents = tmp_path / "docs.jsonl"
    documents.write_text(json.dumps({"text": _text(1)}) + "\n")
    corpus = str(tmp_path)
    assert main(["filter", "--corpus", corpus, str(documents), "--workers", "1", "-q"]) == 0
    assert main(["dedup", "--corpus", corpus, "--workers", "1", "-q"]) == 0
    assert main(["filter", "--corpus", corpus, str(documents), "--overwrite", "--profile=none", "-q"]) == 0
    page = _get(open_client(corpus), "/")
    assert "dedup is stale: filter changed" in page
    (tmp_path / "filter" / "manifest.json").write_text("{")
    assert "filter is damaged: " in _get(open_client(corpus), "/")


def test_a_corpus_without_finished_stages_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "webtext.toml").write_text("")
    client = open_client(str(tmp_path))
    assert "<code>webtext build</code>" in _get(client, "/")
    assert "no stage has finished" in _get(client, "/domains", 400)


def test_own_files_and_folders_of_stages_have_an_overview(corpus: Path) -> None:
    page = _get(open_client([str(corpus / "docs.jsonl")]), "/")
    assert "your own files" in page
    assert re.findall(r'href="(/(?:documents|model|trace))"', page) == ["/documents", "/documents"]
    page = _get(open_client([str(corpus / "dedup")]), "/")
    assert "dedup: 10 documents → 6 documents" in page
    assert "/reports/" not in page


def test_the_domain_with_most_duplicates_is_one_click_away(client: TestClient) -> None:
    page = _get(client, "/domains?count=1")
    assert _table(page) == [
        ["alpha.com", "4", "66.7%", "480", "0", "0", "0", "0"],
        ["hostile.net", "1", "16.7%", "120", "0", "0", "0", "0"],
        ["(unknown)", "1", "16.7%", "120", "0", "0", "0", "0"],
        ["copies.org", "0", "0.0%", "0", "4", "4", "3", "1"],
    ]
    assert 'href="/documents?domain=alpha.com"' in page
    assert '<a href="/dropped?stage=dedup&amp;reason=exact_duplicate&amp;domain=copies.org">3</a>' in page
    assert 'href="/domains?name=alpha.com&amp;count=1"' in _get(client, "/documents?domain=alpha.com")
    assert 'href="/domains?sort=duplicates"' in page
    assert _table(_get(client, "/domains?sort=duplicates"))[0][0] == "copies.org"
    names = [row[0] for row in _table(_get(client, "/domains?sort=name"))]
    assert names[:3] == ["alpha.com", "copies.org", "hostile.net"]


def test_groups_are_counted_in_a_part_of_the_page_once_per_finished_stage(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_client(str(corpus))
    page = _get(client, "/domains?sort=words&name=a")
    assert 'data-load="/domains?sort=words&amp;name=a&amp;count=1"' in page
    assert "alpha.com" not in page
    assert "alpha.com" in _get(client, "/domains?sort=words&name=a&count=1")
    assert "alpha.com" in _get(client, "/domains")
    monkeypatch.setattr(site, "_CHECK_S", -1.0)
    monkeypatch.setattr(site.Site, "read_version", lambda self: ("another stage has finished",))
    assert "alpha.com" not in _get(client, "/domains")


def test_groups_are_filtered_by_name_and_shown_in_pages(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.browse.groups._ROWS", 1)
    page = _get(client, "/domains?count=1&name=O&sort=name")
    assert [row[0] for row in _table(page)] == ["alpha.com"]
    assert "1 to 1 of 3" in page
    assert 'rel="prev"' not in page
    following = re.search(r'rel="next" href="([^"]*)"', page)
    assert following
    page = _get(client, following[1].replace("&amp;", "&"))
    assert [row[0] for row in _table(page)] == ["copies.org"]
    assert 'rel="prev"' in page
    assert _table(_get(client, "/domains?name=100%")) == []


def test_a_document_counts_once_for_each_subreddit_and_names_are_no_markup(client: TestClient) -> None:
    page = _get(client, "/subreddits?count=1")
    assert [row[:2] for row in _table(page)][:2] == [["news", "4"], ["science", "4"]]
    assert 'href="/documents?subreddit=news"' in page
    assert "<script>alert" not in page
    assert "\\u202eevil" in page


def test_clusters_have_their_documents_and_similarities(client: TestClient) -> None:
    page = _get(client, "/clusters?count=1&sort=near")
    rows = _table(page)
    assert len(rows) == 4
    assert rows[0][:4] == ["https://www.alpha.com/3", "2", "0", "1"]
    assert 'near 0.991: <a href="/document?id=c">https://copies.org/near</a>' in page
    assert 'class="row" href="/document?id=a3"' in page
    assert len(_table(_get(client, "/clusters?name=/3"))) == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/domains?sort=text", "sort: unknown column 'text'"),
        ("/domains?sort=documents;--", "unknown column 'documents;--'"),
        ("/domains?offset=x", "offset=x: is not a whole number"),
        ("/domains?offset=-1", "offset=-1: is not a whole number"),
    ],
)
def test_bad_parameters_are_named(client: TestClient, address: str, message: str) -> None:
    assert message in html.unescape(_get(client, address, 400))


def test_documents_without_subreddits_or_clusters_say_so(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "one"}\n')
    client = open_client([str(tmp_path / "docs.jsonl")])
    assert "There are none." in _get(client, "/subreddits?count=1")
    assert "has no clusters; `webtext dedup` finds them" in _get(client, "/clusters?count=1", 400)
    assert _table(_get(client, "/domains?count=1")) == [["(unknown)", "1", "100.0%", "1", "0", "0", "0", "0"]]
