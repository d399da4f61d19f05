"""The report of a fetch, and what a running fetch shows."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fetch_run import run_fetch
from local_web import Answer, LocalWeb

from pipelines.stages.fetch.report import read_domains
from pipelines.stages.fetch.segments import describe_latest
from webtext_cli.main import main


def test_outcomes_and_the_domains_with_the_most_drops(tmp_path: Path) -> None:
    pages: dict[str, Any] = {f"http://a{number}.one.org/": Answer(status=404) for number in range(5)}
    pages |= {f"http://two.org/{number}": b"<p>text</p>" if number else Answer(status=500) for number in range(4)}
    pages |= {f"http://site{number:02}.org/": Answer(status=403) for number in range(25)}
    with LocalWeb(pages) as web, web.as_proxy():
        fetched = run_fetch(tmp_path, pages)
    tables = json.loads((fetched.folder / "report.json").read_text())
    assert tables["outcomes"] == [
        ["http_forbidden", 403, 25],
        ["http_not_found", 404, 5],
        ["http_server_error", 500, 1],
        ["ok", 200, 3],
    ]
    domains = read_domains(str(fetched.folder))
    assert domains[0] == ("one.org", 5, 5, "http_not_found")
    assert len(domains) == 20
    assert domains[1] == ("site00.org", 1, 1, "http_forbidden")
    page = (fetched.folder / "report.html").read_text()
    assert "34 links" in page
    assert "one.org" in page
    assert "All links within one minute" in page


def test_a_running_fetch_shows_its_latest_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()

    def wait(handler: Any) -> None:
        release.wait(20)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    output = str(tmp_path / "corpus" / "fetch")
    pages = {"http://quick.org/": b"<p>text</p>", "http://gone.org/": Answer(status=404)}
    with LocalWeb({**pages, "http://slow.org/": wait}) as web, web.as_proxy():
        (tmp_path / "corpus").mkdir()
        thread = threading.Thread(target=run_fetch, args=(tmp_path / "corpus", [*pages, "http://slow.org/"]))
        thread.start()
        try:
            deadline = time.monotonic() + 15
            expected = ("http_not_found 1", "ok 1")
            while not all(part in (latest := describe_latest(output)) for part in expected):
                assert time.monotonic() < deadline, latest
                time.sleep(0.05)
            assert main(["status", "--corpus", str(tmp_path / "corpus")]) == 0
            assert "latest outcomes: " in capsys.readouterr().out
        finally:
            release.set()
            thread.join()
    assert describe_latest(output) == ""


def test_the_command_prints_the_domains_with_the_most_drops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {"http://a.org/": b"<p>text</p>", "http://b.org/": Answer(status=404)}
    (tmp_path / "urls.txt").write_text("\n".join(pages))
    with LocalWeb(pages) as web, web.as_proxy():
        arguments = ["fetch", "-i", str(tmp_path / "urls.txt"), "-o", str(tmp_path / "out"), "-q"]
        assert main([*arguments, "--per-host-delay", "0", "--workers", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["b.org", "1", "1", "http_not_found"] in lines
