"""The command `webtext browse`: what it serves, where it listens, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
import uvicorn
from browser_client import open_client
from starlette.testclient import TestClient

from pipelines.browse import site
from webtext_cli.main import main


@pytest.fixture
def documents(tmp_path: Path) -> str:
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": "one two " * 60}) + "\n" for number in range(3)))
    return str(path)


def test_the_server_listens_on_a_free_port_and_ends_with_ctrl_c_or_sigterm_without_torch(documents: str) -> None:
    # The server is started twice by one program, whose imports take most of the time.
    check = "atexit.register(lambda: 'torch' in sys.modules and os._exit(9))"
    program = f"import atexit, os, sys; {check}; from webtext_cli.main import main, run; main(sys.argv[1:]) or run()"
    command = [sys.executable, "-c", program, "browse", "-i", documents, "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            url = server.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*/\?token=[\w-]{20,}", url)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
            assert server.stdout.readline() == "press Ctrl-C to stop\n"
            with opener.open(url, timeout=30) as page:
                assert b"documents.jsonl" in page.read()
            server.send_signal(number)
        output, errors = server.communicate(timeout=30)
    assert server.returncode == 0
    assert (output, errors) == ("", "")


def test_the_browser_is_opened_at_the_address_unless_it_is_not_wanted(
    documents: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    assert main(["browse", "-i", documents, "--port", "0"]) == 0
    assert opened == capsys.readouterr().out.splitlines()[:1]
    assert main(["browse", "-i", documents, "--port", "0", "--no-open"]) == 0
    assert len(opened) == 1


def test_an_ipv6_address(documents: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    apps: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: apps.append(self.config.app))
    if main(["browse", "-i", documents, "--port", "0", "--host", "::1", "--no-open"]) != 0:
        pytest.skip("this machine has no IPv6")
    url = capsys.readouterr().out.splitlines()[0]
    assert url.startswith("http://[::1]:")
    assert TestClient(apps[0], base_url=url.partition("?")[0]).get(url).status_code == 200


def test_the_current_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "my-corpus"
    corpus.mkdir()
    (corpus / "webtext.toml").touch()
    monkeypatch.chdir(corpus)
    assert "<h1>my-corpus</h1>" in open_client(".").get("/").text


def test_a_port_in_use_is_named(documents: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["browse", "-i", documents, "--port", str(port), "--no-open"]) == 1
    assert (
        f"--port {port}: cannot listen on 127.0.0.1 (Address already in use); choose another" in capsys.readouterr().err
    )


def test_what_cannot_be_browsed_is_an_error_before_the_server_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["browse", "--corpus", str(tmp_path / "none"), "--no-open"]) == 1
    assert "is not a corpus (no such folder)" in capsys.readouterr().err
    assert main(["browse", "-i", str(tmp_path / "none.jsonl"), "--no-open"]) == 1
    assert "none.jsonl: no such file or folder" in capsys.readouterr().err


def test_a_stage_that_finishes_meanwhile_appears(
    tmp_path: Path, documents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_CHECK_S", -1.0)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "webtext.toml").write_text("")
    client = open_client(str(corpus))
    assert client.get("/domains?count=1").status_code == 400
    assert main(["filter", "--corpus", str(corpus), documents, "--profile=none", "--workers", "1", "-q"]) == 0
    assert "filter: 3 documents → 3 documents" in client.get("/").text
    assert "<td>3</td>" in client.get("/domains?count=1").text
    assert main(["dedup", "--corpus", str(corpus), "--workers", "1", "-q"]) == 0
    assert "dedup: 3 documents → 1 documents" in client.get("/").text
    assert client.get("/clusters?count=1").status_code == 200


@pytest.mark.slow
def test_a_corpus_in_an_object_store(bucket: str, documents: str) -> None:
    corpus = f"{bucket}/corpus"
    assert main(["dedup", "--corpus", corpus, documents, "--workers", "1", "-q"]) == 0
    client = open_client(corpus)
    assert "dedup: 3 documents → 1 documents" in client.get("/").text
    assert client.get("/reports/dedup/report.html").status_code == 200
    assert "<td>3</td>" in client.get("/clusters?count=1").text
    assert "exact 1.000" in client.get("/clusters").text
