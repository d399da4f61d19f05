"""Resuming a fetch that was killed, interrupted or damaged."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fetch_run import Fetched, read_records, run_fetch
from killed_fetch import start_fetch
from local_web import Answer, LocalWeb

from pipelines import storage
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import ShardEntry
from pipelines.errors import ChangedRunError, DamagedShardError, StorageError
from pipelines.stages.fetch import segments

_FLUSH_OUTCOMES = 5


def _pages(count: int) -> dict[str, Any]:
    pages: dict[str, Any] = {f"/{number}": f"<p>page {number}</p>".encode() for number in range(count)}
    for number in range(0, count, 7):
        pages[f"/{number}"] = Answer(b"no", 404)
    for number in range(3, count, 11):
        pages[f"/{number}"] = Answer(b"moved", 302, {"Location": "/1"})
    return pages


def _comparable(fetched: Fetched, port: int) -> list[dict[str, Any]]:
    """Return the rows without what may differ, and with the stored page in place of where it is stored."""
    rows = []
    for row in fetched.rows:
        stored = fetched.record(row["url"]).content_stream().read() if row["outcome"] == "ok" else None
        kept = {key: value for key, value in row.items() if key not in ("fetched_at", "warc_offset")}
        kept |= {key: kept[key].replace(str(port), "PORT") for key in ("url", "final_url")}
        rows.append({**kept, "page": stored})
    return rows


def _kill_after(web: LocalWeb, folder: Path, requests: int) -> None:
    """Run fetch in a child process and kill it after this many more requests."""
    limit = len(web.requests) + requests
    process = start_fetch(folder)
    while len(web.requests) < limit and process.is_alive():
        time.sleep(0.002)
    process.kill()
    process.join()


def test_kill_9_repeats_only_the_request_under_way(tmp_path: Path) -> None:
    kills = (20, 3, 25, 12)
    with LocalWeb(_pages(120)) as web:
        urls = [web.url(path) for path in web.pages]
        (tmp_path / "clean").mkdir()
        expected = _comparable(run_fetch(tmp_path / "clean", urls), web.port)
        web.requests.clear()
        (tmp_path / "killed").mkdir()
        (tmp_path / "killed" / "urls.txt").write_text("\n".join(urls))
        for requests in kills:
            _kill_after(web, tmp_path / "killed", requests)
        assert not (tmp_path / "killed" / "fetch" / "manifest.json").exists()
        fetched = run_fetch(tmp_path / "killed")
        assert _comparable(fetched, web.port) == expected
        requests_by_path = Counter(web.paths())
        del requests_by_path["/1"]  # the target of redirects
        # There is one host, to which one request at a time is sent.
        assert requests_by_path.total() - len(requests_by_path) <= len(kills)
    assert len(read_records(tmp_path / "killed" / "fetch" / "pages-00000.warc.gz")) > 2 * len(urls)
    assert sorted(path.name for path in (tmp_path / "killed" / "fetch").iterdir()) == [
        ".lock", "dropped-00000.parquet", "manifest.json", "pages-00000.parquet", "pages-00000.warc.gz",
        "report-00000.json", "report.html", "report.json",
    ]  # fmt: skip


class _StoppedError(Exception):
    pass


def _interrupted(folder: Path, web: LocalWeb, monkeypatch: pytest.MonkeyPatch, after: int) -> Path:
    """Fetch with small segments until the server has had this many requests; return the folder of the segments."""
    monkeypatch.setattr(segments, "FLUSH_OUTCOMES", _FLUSH_OUTCOMES)

    def stop(self: segments.SegmentWriter, outcome: object) -> None:
        if len(web.paths()) >= after:
            raise _StoppedError
        add_outcome(self, outcome)  # type: ignore[arg-type]

    add_outcome = segments.SegmentWriter.add
    with monkeypatch.context() as patch:
        patch.setattr(segments.SegmentWriter, "add", stop)
        with pytest.raises(Exception, match="_StoppedError"):
            run_fetch(folder, [web.url(path) for path in web.pages])
    return folder / "fetch" / "_work" / "pages-00000"


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_what_is_damaged_in_a_segment_is_refetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    with LocalWeb(_pages(40)) as web:
        folder = _interrupted(tmp_path, web, monkeypatch, after=25)
        for number, part in enumerate(("journal", "warc.gz")):
            path = folder / f"segment-{number:06d}.{part}"
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
        web.requests.clear()
        fetched = run_fetch(tmp_path)
        # A half of the outcomes of either segment, or all of them.
        lost = 2 * (_FLUSH_OUTCOMES if damage == "missing" else _FLUSH_OUTCOMES // 2)
        assert len(set(web.paths()) - {"/1"}) >= 40 - 25 + lost
        assert [row["url"] for row in fetched.rows] == [web.url(path) for path in web.pages]
        assert read_records(fetched.folder / "pages-00000.warc.gz")


def test_pages_fetched_before_an_error_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalWeb(_pages(40)) as web:
        _interrupted(tmp_path, web, monkeypatch, after=24)
        web.requests.clear()
        run_fetch(tmp_path)
        # Of the 24 requests before the error some were redirects to /1, and at most two had no outcome yet.
        redirects = len([page for page in web.pages.values() if isinstance(page, Answer) and page.status == 302])
        assert len({path for path in web.paths() if path != "/1"}) <= 40 - 24 + redirects + 2


def test_no_record_is_lost_where_a_segment_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FLUSH_S", 0.0)
    moved = {path: Answer(b"", 302, {"Location": to}) for path, to in (("/a", "/b"), ("/b", "/c"))}
    with LocalWeb({**moved, "/c": b"<p>text</p>"}) as web:
        fetched = run_fetch(tmp_path, [web.url("/a")])
        responses = [url for kind, url, _ in read_records(fetched.folder / "pages-00000.warc.gz") if kind == "response"]
        assert responses == [web.url(path) for path in ("/robots.txt", "/a", "/b", "/c")]


def test_a_complete_shard_without_a_journal_entry_is_not_refetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry = OutputFolder.write_entry

    def stop_at_the_entry(folder: OutputFolder, entry: ShardEntry) -> None:
        if entry.name == "pages-00000":
            raise _StoppedError
        write_entry(folder, entry)

    with LocalWeb(_pages(20)) as web:
        with monkeypatch.context() as patch:
            patch.setattr(OutputFolder, "write_entry", stop_at_the_entry)
            with pytest.raises(_StoppedError):
                run_fetch(tmp_path, [web.url(path) for path in web.pages])
        before = {file.name: file.read_bytes() for file in (tmp_path / "fetch").glob("*-00000.*")}
        web.requests.clear()
        with monkeypatch.context() as patch:
            patch.setattr("pipelines.stages.fetch.stage.write_report", _stop)
            with pytest.raises(Exception, match="_StoppedError"):
                run_fetch(tmp_path)
        assert not (tmp_path / "fetch" / "_work" / "pages-00000").exists(), "a complete shard has no segments"
        fetched = run_fetch(tmp_path)
        assert web.requests == []
    assert len(before) == 4
    assert {name: (tmp_path / "fetch" / name).read_bytes() for name in before} == before
    assert len(fetched.rows) == 20


def _stop(*_: object) -> None:
    raise _StoppedError


def test_a_damaged_result_is_refetched_only_with_discard_pages(tmp_path: Path) -> None:
    with LocalWeb(_pages(10)) as web:
        fetched = run_fetch(tmp_path, [web.url(path) for path in web.pages])
        warc = fetched.folder / "pages-00000.warc.gz"
        warc.write_bytes(warc.read_bytes()[:-1])
        before = len(web.requests)
        with pytest.raises(DamagedShardError, match="use --discard-pages"):
            run_fetch(tmp_path, overwrite=True)
        assert len(web.requests) == before
        run_fetch(tmp_path, discard_pages=True)
        assert len(web.requests) == 2 * before
    assert read_records(warc)


def test_a_full_disk_is_reported_and_the_rerun_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: storage.HashingWriter, data: bytes) -> int:
        if "segment-000002" in self._path:
            raise StorageError(f"{self._path}: cannot write: No space left on device")
        return write(self, data)

    write = storage.HashingWriter.write
    monkeypatch.setattr(segments, "FLUSH_OUTCOMES", _FLUSH_OUTCOMES)
    with LocalWeb(_pages(30)) as web:
        with monkeypatch.context() as patch:
            patch.setattr(storage.HashingWriter, "write", full)
            with pytest.raises(StorageError, match=r"segment-000002.*No space left on device"):
                run_fetch(tmp_path, [web.url(path) for path in web.pages])
        web.requests.clear()
        assert len(run_fetch(tmp_path).rows) == 30
        assert len(set(web.paths())) <= 30 - 2 * _FLUSH_OUTCOMES + 1


def test_limits_identify_the_result_but_politeness_does_not(tmp_path: Path) -> None:
    with LocalWeb({"/": b"<p>text</p>"}) as web:
        run_fetch(tmp_path, [web.url("/")])
        run_fetch(tmp_path, concurrency=3, per_host_delay=0.5, max_wait=1.0, contact="http://example.org/")
        with pytest.raises(ChangedRunError, match="max_page_bytes was 5242880, is now 1000"):
            run_fetch(tmp_path, max_page_bytes=1000)
        before = {path: path.read_bytes() for path in sorted((tmp_path / "fetch").glob("*.*"))}
        with pytest.raises(ChangedRunError, match="Use --overwrite --discard-pages to fetch all pages again"):
            run_fetch(tmp_path, max_page_bytes=1000, overwrite=True)
        assert {path: path.read_bytes() for path in sorted((tmp_path / "fetch").glob("*.*"))} == before
        run_fetch(tmp_path, max_page_bytes=1000, overwrite=True, discard_pages=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_at_once_despite_hanging_servers(tmp_path: Path, workers: int) -> None:
    def hang(handler: object) -> None:
        time.sleep(20)

    pages = {"/quick": b"<p>text</p>", "/hang": hang}
    with LocalWeb(pages) as one, LocalWeb(pages) as two:
        urls = [web.url(path) for path in pages for web in (one, two)]
        (tmp_path / "urls.txt").write_text("\n".join(urls))
        command = [sys.executable, "-m", "webtext_cli", "fetch", "-i", str(tmp_path / "urls.txt")]
        command += ["-o", str(tmp_path / "fetch"), "--per-host-delay", "0", "--allow-private-addresses"]
        command += ["--contact", "mailto:test@example.org"]
        with subprocess.Popen(
            [*command, "--workers", str(workers), "--quiet"], stderr=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and not all("/hang" in web.paths() for web in (one, two)):
                time.sleep(0.02)
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
            assert time.monotonic() - started < 5
    assert (process.returncode, errors.lstrip()) == (
        130, "interrupted; completed work is kept: re-run the same command to resume\n",
    )  # fmt: skip
    shutil.rmtree(tmp_path / "fetch")
