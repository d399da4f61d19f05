"""Verdicts of documents whose pages are the same, have changed, are gone or have moved."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from local_archives import Archived, machine_options, wayback
from local_web import Answer, LocalWeb
from release_folder import (
    HOSTS,
    QUICK,
    URLS,
    make_corpus,
    page,
    rows_of,
    run,
    small_web,
    url_rows,
    verdicts,
    words_of,
    write_release,
)  # fmt: skip
from small_web import words_text

from pipelines.algorithms.web.urls import id_of_url
from pipelines.engine.run import RunOptions
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.stage import fetch

SLIGHTLY, WHOLLY, MISSING, MOVED, EMPTY = URLS[0], URLS[1], URLS[3], URLS[6], URLS[9]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("rehydrate") / "corpus")


@pytest.fixture(scope="module")
def release(corpus: Path) -> Path:
    return write_release(corpus.parent / "release", corpus)


def test_all_are_exact_if_nothing_has_changed(release: Path, corpus: Path, tmp_path: Path) -> None:
    summary, notes = run(release, tmp_path / "new")
    assert (summary.records_in, summary.records_out, dict(summary.dropped)) == (12, 12, {})
    assert summary.extra["exact"] == 12
    found = verdicts(tmp_path / "new")
    assert {row["verdict"] for row in found.values()} == {"exact"}
    assert {row["jaccard"] for row in found.values()} == {1.0}
    texts = {row["id"]: row["text"] for row in rows_of(corpus / "extract", "documents")}
    assert {row["id"]: row["text"] for row in rows_of(tmp_path / "new/rehydrate", "documents")} == texts
    assert all("text" not in note for note in notes)


def test_links_are_those_of_scrape_with_the_values_of_the_release(release: Path, tmp_path: Path) -> None:
    run(release, tmp_path / "new")
    rows = {row["url"]: row for row in rows_of(tmp_path / "new/scrape", "links")}
    row = rows[URLS[4]]
    assert (row["score"], row["submission_ids"], row["subreddits"]) == (4, ["s4"], ["news"])
    assert (row["created_utc"], row["domain"], row["over_18"]) == (1451606404, "beta.org", False)
    # All links of a domain are in one shard.
    files = sorted((tmp_path / "new/scrape").glob("links-*.parquet"))
    places = [{*pq.read_table(path)["domain"].to_pylist()} for path in files]
    assert len(files) == 3
    assert sum(map(len, places)) == len(set().union(*places)) == 3
    [document] = [row for row in rows_of(tmp_path / "new/rehydrate", "documents") if row["url"] == URLS[4]]
    assert (document["score"], document["submission_ids"]) == (4, ["s4"])


def changed_web() -> dict[str, object]:
    web = small_web()
    words = words_of(SLIGHTLY).split()
    web[SLIGHTLY] = page(" ".join([*words[:100], "entirely", "other", "words", "here", *words[104:]]))
    web[WHOLLY] = page(words_text(999, 240))
    web[MISSING] = Answer(b"gone", 404)
    web[f"http://{HOSTS[2]}/new.html"] = web[MOVED]
    web[MOVED] = Answer(status=301, headers={"Location": f"http://{HOSTS[2]}/new.html"})
    web[EMPTY] = page("")
    return web


def test_each_verdict(release: Path, tmp_path: Path) -> None:
    summary, _ = run(release, tmp_path / "new", changed_web())
    found = verdicts(tmp_path / "new")
    assert found[SLIGHTLY]["verdict"] == "near"
    assert 0.8 <= found[SLIGHTLY]["jaccard"] < 1
    assert found[WHOLLY]["verdict"] == "changed"
    assert found[WHOLLY]["jaccard"] < 0.2
    gone = found[MISSING]
    assert (gone["verdict"], gone["reason"], gone["jaccard"]) == ("gone", "fetch.http_not_found", None)
    assert (found[EMPTY]["verdict"], found[EMPTY]["reason"]) == ("gone", "extract.empty_text")
    assert (found[MOVED]["verdict"], found[MOVED]["final_url"]) == ("exact", f"http://{HOSTS[2]}/new.html")
    others = set(URLS) - {SLIGHTLY, WHOLLY, MISSING, EMPTY}
    assert all((found[url]["verdict"], found[url]["reason"]) == ("exact", None) for url in others)
    assert {row["id"] for row in found.values()} == {id_of_url(url) for url in URLS}

    assert (summary.records_in, summary.records_out) == (12, 9)
    assert (dict(summary.dropped), summary.extra["exact"], summary.extra["near"]) == ({"gone": 2, "changed": 1}, 8, 1)
    kept = {row["url"] for row in rows_of(tmp_path / "new/rehydrate", "documents")}
    assert kept == others | {SLIGHTLY}
    [dropped] = rows_of(tmp_path / "new/rehydrate", "dropped")
    assert (dropped["url"], dropped["reason"], dropped["detail"][:8]) == (WHOLLY, "changed", "Jaccard ")

    report = json.loads((tmp_path / "new/rehydrate/report.json").read_text())
    assert report["verdicts"] == {"exact": 8, "gone": 2, "near": 1, "changed": 1}
    assert report["sources"] == {"live": {"exact": 8, "near": 1, "changed": 1, "gone": 2}}
    assert report["reasons"] == {"fetch.http_not_found": 1, "extract.empty_text": 1}
    # Domains with the most documents that are not exact first: exact, near, changed, gone.
    assert report["domains"] == [["alpha.com", 1, 1, 1, 0], ["beta.org", 5, 0, 0, 1], ["gamma.co.uk", 2, 0, 0, 1]]
    html = (tmp_path / "new/rehydrate/report.html").read_text()
    assert all(text in html for text in ("Rehydration report", "12 documents", "fetch.http_not_found", "beta.org"))


@pytest.mark.usefixtures("warm_processes")
def test_one_and_two_workers_write_the_same_verdicts(release: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        run(release, tmp_path / name, changed_web(), workers=workers)
    one, two = tmp_path / "one", tmp_path / "two"
    assert (one / "scrape/manifest.json").read_bytes() == (two / "scrape/manifest.json").read_bytes()
    names = sorted(path.name for path in (one / "rehydrate").glob("*.*") if path.suffix in (".parquet", ".json"))
    assert len(names) > 9
    # Documents and the manifest contain the times of the pages.
    for name in (name for name in names if name[:4] not in ("docu", "mani")):
        assert (one / "rehydrate" / name).read_bytes() == (two / "rehydrate" / name).read_bytes(), name


def test_a_page_that_was_gone_is_fetched_again(release: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    run(release, new, changed_web())
    before = verdicts(new)
    assert run(release, new, changed_web())[0].extra["exact"] == 8
    with LocalWeb(small_web()) as web, web.as_proxy():
        config = FetchConfig(**QUICK)
        fetch(config, links=f"{new}/scrape", output=f"{new}/fetch", options=RunOptions(), retry=["http_not_found"])
    run(release, new, {})
    after = verdicts(new)
    assert after.pop(MISSING)["verdict"] == "exact"
    del before[MISSING]
    assert after == before


def test_only_documents_of_the_release_are_requested(corpus: Path, tmp_path: Path) -> None:
    rows = url_rows(corpus)
    for row, outcome in zip(rows, ("extract.empty_text", "removed", "dedup.near_duplicate"), strict=False):
        row |= {"outcome": outcome, "text_sha256": None, "sketch": None}
    release = write_release(tmp_path / "release", corpus, rows)
    summary, _ = run(release, tmp_path / "new")
    assert (summary.records_in, summary.extra["exact"]) == (9, 9)
    manifest = json.loads((tmp_path / "new/scrape/manifest.json").read_text())
    assert (manifest["records_in"], manifest["dropped"]) == (12, {"not_in_release": 3})
    assert set(verdicts(tmp_path / "new")) == {row["url"] for row in rows[3:]}


def test_a_release_without_dates_scores_and_submissions(corpus: Path, tmp_path: Path) -> None:
    empty = dict.fromkeys(("title", "score", "submission_ids", "subreddits", "created_utc", "fetched_at", "domain"))
    rows = [row | empty for row in url_rows(corpus)]
    release = write_release(tmp_path / "release", corpus, rows, tables=1)
    assert run(release, tmp_path / "new")[0].extra["exact"] == 12
    [link] = [row for row in rows_of(tmp_path / "new/scrape", "links") if row["url"] == URLS[0]]
    assert (link["score"], link["submission_ids"], link["title"], link["created_utc"]) == (0, [], "", 0)
    assert link["captured_at"] is None


def test_lines_are_removed_as_the_filter_of_the_release_did(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", ["c4"])
    texts = {row["text"] for row in rows_of(corpus / "filter", "documents")}
    assert texts.isdisjoint(row["text"] for row in rows_of(corpus / "extract", "documents"))
    release = write_release(tmp_path / "release", corpus)
    web = small_web() | {SLIGHTLY: page(words_text(999, 20))}
    summary, notes = run(release, tmp_path / "new", web)
    assert notes == ["no --contact set: site owners cannot reach you"]
    assert summary.extra["exact"] == 11
    # The rules that drop documents are off: this one is too short for them.
    assert verdicts(tmp_path / "new")[SLIGHTLY]["verdict"] == "changed"


def test_archives_take_the_capture_nearest_to_the_recorded_date(corpus: Path, tmp_path: Path) -> None:
    rows = url_rows(corpus)[:3]
    for row in rows:
        row |= {"captured_at": dt.datetime(2019, 5, 1), "created_utc": 1262304000}  # submitted in 2010
    other = page(words_text(999, 240))
    captures = [
        *(Archived(row["url"], "2010-01-01", other) for row in rows),
        Archived(rows[0]["url"], "2019-05-02", small_web()[rows[0]["url"]]),
    ]
    release = write_release(tmp_path / "release", corpus, rows)
    with wayback(captures) as machine:
        run(release, tmp_path / "new", {}, source="archives", **machine_options(machine))
    found = verdicts(tmp_path / "new")
    assert [found[row["url"]]["verdict"] for row in rows] == ["exact", "changed", "changed"]
    assert {row["source"] for row in found.values()} == {"wayback"}
    pages = {row["url"]: row["captured_days"] for row in rows_of(tmp_path / "new/fetch", "pages")}
    assert pages[rows[0]["url"]] == 2


def test_without_dates_archives_take_the_latest_capture(corpus: Path, tmp_path: Path) -> None:
    rows = [row | {"fetched_at": None, "created_utc": None} for row in url_rows(corpus)[:2]]
    captures = []
    for row in rows:
        captures.append(Archived(row["url"], "1999-01-01", page(words_text(999, 240))))
        captures.append(Archived(row["url"], "2019-05-02", small_web()[row["url"]]))
    release = write_release(tmp_path / "release", corpus, rows)
    with wayback(captures) as machine:
        summary, _ = run(release, tmp_path / "new", {}, source="archives", **machine_options(machine))
    assert summary.extra["exact"] == 2
    assert {row["captured_days"] for row in rows_of(tmp_path / "new/fetch", "pages")} == {None}
