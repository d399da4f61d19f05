"""Links that were added are fetched alone, and dropped ones retried; what is known stays, in its WARC files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fetch_run import Fetched, read_records, run_fetch
from local_web import Answer, LocalWeb

from pipelines.engine.manifest import read_manifest
from pipelines.errors import ChangedRunError, UsageError
from pipelines.progress import Silent
from pipelines.stages.fetch import links, stage


def _pages(count: int) -> dict[str, Any]:
    pages: dict[str, Any] = {f"/{number:02d}": f"<p>page {number}</p>".encode() for number in range(count)}
    for number in range(0, count, 5):
        pages[f"/{number:02d}"] = Answer(b"no", 404)
    return pages


def _comparable(fetched: Fetched) -> list[dict[str, Any]]:
    """Return the rows without times, and with the stored page in place of where it is stored."""
    rows = []
    for row in fetched.rows:
        stored = fetched.record(row["url"]).content_stream().read() if row["outcome"] == "ok" else None
        kept = {key: value for key, value in row.items() if key not in ("fetched_at", "warc_file", "warc_offset")}
        rows.append({**kept, "page": stored})
    return rows


def _totals(fetched: Fetched) -> tuple[Any, ...]:
    manifest = read_manifest(str(fetched.folder))
    return manifest.identity, manifest.records_in, manifest.records_out, manifest.dropped, manifest.counts["page_bytes"]


def test_added_links_are_fetched_alone_with_the_rows_of_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    with LocalWeb(_pages(30)) as web:
        urls = [web.url(path) for path in web.pages]
        # A known request under another URL, before and after the known one; and a URL that cannot be requested.
        urls = [f"{urls[7]}#first", *urls, f"{urls[8]}#last", "ftp://x.org/"]
        at_once = run_fetch(tmp_path / "all", urls)
        web.requests.clear()
        run_fetch(tmp_path, urls[2::3])
        first = read_records(tmp_path / "fetch" / "pages-00000.warc.gz")
        run_fetch(tmp_path, urls[1:])
        fetched = run_fetch(tmp_path, urls)
        requested = web.paths()
        assert sorted(requested) == sorted(web.pages), "every page once"
    assert _comparable(fetched) == _comparable(at_once)
    assert _totals(fetched) == _totals(at_once)
    assert read_records(tmp_path / "fetch" / "pages-00000.warc.gz") == first, "linked as it is"
    assert sorted(path.name for path in (tmp_path / "fetch").iterdir()) == [
        ".lock", "dropped-00000.parquet", "manifest.json", "pages-00000-00001.warc.gz", "pages-00000.parquet",
        "pages-00000.warc.gz", "report-00000.json", "report.html", "report.json",
    ]  # fmt: skip
    assert (tmp_path / "fetch" / "dropped-00000.parquet").read_bytes() == (
        at_once.folder / "dropped-00000.parquet"
    ).read_bytes()


def test_links_whose_shard_changes_keep_their_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all").mkdir()
    opened = links.open_links
    with LocalWeb(_pages(20)) as web:
        hosts = [f"http://127.0.0.{number}:{web.port}" for number in range(1, 9)]
        urls = [f"{host}{path}" for host in hosts for path in list(web.pages)[:3]]
        monkeypatch.setattr(stage, "open_links", lambda paths: opened(paths, 200))
        run_fetch(tmp_path, urls[1::2])
        assert len(list((tmp_path / "fetch").glob("pages-*.parquet"))) == 2
        web.requests.clear()
        fetched = run_fetch(tmp_path, urls)
        assert sorted(web.paths()) == ["/00", "/02"]
        at_once = run_fetch(tmp_path / "all", urls)
    assert len(list((tmp_path / "fetch").glob("pages-*.parquet"))) == 4
    assert _comparable(fetched) == _comparable(at_once)
    assert _totals(fetched) == _totals(at_once)


def test_dropped_links_are_retried_by_reason(tmp_path: Path) -> None:
    pages = {"/a": b"<p>a</p>", "/b": Answer(b"no", 404), "/c": Answer(b"no", 503), "/d": Answer(b"no", 403)}
    with LocalWeb(pages) as web:
        urls = [web.url(path) for path in pages]
        run_fetch(tmp_path, urls)
        web.pages.update({"/a": b"<p>other</p>", "/b": b"<p>b</p>", "/c": b"<p>c</p>", "/d": b"<p>d</p>"})
        web.requests.clear()
        fetched = run_fetch(tmp_path, retry=["http_not_found", "http_server_error"])
        assert sorted(set(web.paths())) == ["/b", "/c"]
        assert list(fetched.outcomes.values()) == ["ok", "ok", "ok", "http_forbidden"]
        assert [fetched.record(url).content_stream().read() for url in urls[:3]] == [
            b"<p>a</p>",
            b"<p>b</p>",
            b"<p>c</p>",
        ]
        before = read_manifest(str(fetched.folder))
        assert run_fetch(tmp_path, retry=["dns"]).rows == fetched.rows, "nothing to retry"
        assert read_manifest(str(fetched.folder)).records_out == before.records_out == 3
        with pytest.raises(UsageError, match=r"--retry timout: unknown reason; did you mean timeout\?"):
            run_fetch(tmp_path, retry=["timout"])
        (tmp_path / "new").mkdir()
        with pytest.raises(UsageError, match="--retry needs a finished fetch; run the command without it first"):
            run_fetch(tmp_path / "new", urls, retry=["dns"])
        assert not (tmp_path / "new" / "fetch").exists()


def test_links_that_are_added_while_the_network_is_down_can_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalWeb(_pages(3)) as web:
        urls = [web.url(path) for path in web.pages]
        rows = run_fetch(tmp_path, urls).rows
        closed = [web.url("/03"), web.url("/04")]
    notes: list[str] = []
    monkeypatch.setattr(Silent, "note", lambda _, message: notes.append(message))
    fetched = run_fetch(tmp_path, [*urls, *closed, "ftp://x.org/"])
    assert list(fetched.outcomes.values())[3:] == ["connection", "connection", "bad_url"]
    advice = "no new request reached a site; if the network was down, use --retry connection"
    assert notes[-1] == advice
    assert fetched.rows[:3] == rows
    # Sites that could not be reached before say nothing about the network, however many they are.
    monkeypatch.setattr("pipelines.stages.fetch.crawl._UNREACHED_SITES", 1)
    before = fetched.rows
    after = run_fetch(tmp_path, retry=["connection"]).rows
    assert [row["outcome"] for row in after] == [row["outcome"] for row in before]
    assert notes.count(advice) == 1
    requested = [row["fetched_at"] > earlier["fetched_at"] for row, earlier in zip(after, before, strict=True)]
    assert requested == [row["outcome"] in ("dropped.connection", "dropped.bad_url") for row in before]


def test_an_addition_that_is_interrupted_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalWeb(_pages(20)) as web:
        urls = [web.url(path) for path in web.pages]
        run_fetch(tmp_path, urls[:10])
        before = {path.name: path.read_bytes() for path in (tmp_path / "fetch").glob("*.*")}
        web.requests.clear()

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(stage, "write_shard_files", stop)
            with pytest.raises(KeyboardInterrupt):
                run_fetch(tmp_path, urls)
        assert {name: (tmp_path / "fetch" / name).read_bytes() for name in before} == before
        advice = "Finish it with its own options and inputs, or delete this folder"
        with pytest.raises(ChangedRunError, match=f"_next: contains an unfinished addition that differs: .*{advice}"):
            run_fetch(tmp_path, urls[:15])
        (tmp_path / "urls.txt").write_text("".join(f"{url}\n" for url in urls))
        fetched = run_fetch(tmp_path)
        requested = web.paths()
        assert sorted(requested) == sorted(web.pages)[10:]
        assert len(fetched.rows) == 20
        with monkeypatch.context() as patch:
            patch.setattr("pipelines.engine.stage_run.replace_result", stop)
            with pytest.raises(KeyboardInterrupt):
                run_fetch(tmp_path, retry=["http_not_found"])
        with pytest.raises(ChangedRunError, match="an unfinished run retries other reasons"):
            run_fetch(tmp_path, retry=["timeout"])
        web.requests.clear()
        run_fetch(tmp_path, retry=["http_not_found"])
        assert web.requests == []


def test_a_list_that_lost_links_is_refused_and_overwrite_keeps_their_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalWeb(_pages(12)) as web:
        urls = [web.url(path) for path in web.pages]
        run_fetch(tmp_path, urls[:10])
        stored = read_records(tmp_path / "fetch" / "pages-00000.warc.gz")
        with pytest.raises(
            ChangedRunError, match=r"2 links that were fetched are missing from the links\. Use --overwrite to drop"
        ):
            run_fetch(tmp_path, urls[2:])
        assert len(run_fetch(tmp_path, urls[:10]).rows) == 10
        assert not (tmp_path / "fetch" / "_next").exists()
        web.requests.clear()

        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(stage, "write_shard_files", stop)
            with pytest.raises(KeyboardInterrupt):
                run_fetch(tmp_path, urls[2:], overwrite=True)
        fetched = run_fetch(tmp_path, urls[2:], overwrite=True)
        assert sorted(set(web.paths())) == ["/10", "/11"]
        assert [row["url"] for row in fetched.rows] == urls[2:]
        assert read_records(tmp_path / "fetch" / "pages-00000.warc.gz") == stored
        web.requests.clear()
        run_fetch(tmp_path, urls[3:], overwrite=True, discard_pages=True)
        assert sorted(set(web.paths())) == sorted(web.pages)[3:]
        assert not list((tmp_path / "fetch").glob("pages-00000-*"))


def test_a_file_system_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no hard links")

    monkeypatch.setattr("os.link", refuse)
    with LocalWeb(_pages(6)) as web:
        urls = [web.url(path) for path in web.pages]
        run_fetch(tmp_path, urls[:3])
        shutil.copytree(tmp_path / "fetch", tmp_path / "before")
        fetched = run_fetch(tmp_path, urls)
    name = "pages-00000.warc.gz"
    assert (tmp_path / "fetch" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()
    assert [row["outcome"] for row in fetched.rows].count("ok") == 4
