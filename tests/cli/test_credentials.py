"""User and password of a URL are in no message, log, record or fingerprint; in data they stay."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.engine.config import identity_of
from pipelines.errors import StorageError, TaskError, UsageError
from pipelines.format import mask_credentials
from pipelines.stages.fetch import archives
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.filter.config import FilterConfig
from pipelines.storage import names_below_common_folder
from webtext_cli.main import main

_TEXT = "the river runs past the old mill and the corpus has a language model in each paragraph of every page "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    records = [{"id": f"d{n}", "text": _TEXT * (n + 2), "url": f"http://user:pw{n}@a.com/{n}"} for n in range(5)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host:80/a: no", "http://***@host:80/a: no"),
        ("ftp://user@host", "ftp://***@host"),
        ("a=https://u:p@ss@h/x and (https://u:p@i/y)", "a=https://***@h/x and (https://***@i/y)"),
        ("s3://KEY:se/cr/et@bucket/x", "s3://***@bucket/x"),
        ("http://u:pa?s#s@h/", "http://***@h/"),
        ("http://u:%40%2F'\"$@[::1]:80/", "http://***@[::1]:80/"),
        ("ray://:secret@head:10001", "ray://***@head:10001"),
        ("user:secret@host:3128 refused", "***@host:3128 refused"),
        ("--api-url=http://u:p@h", "--api-url=http://***@h"),
        ("abfs://container@account.dfs.core.windows.net/a", None),
        ("abfss://container:secret@account/a", "abfss://***@account/a"),
        ("https://medium.com/@user/post", None),
        ("https://host:8080/@user/post?to=a@b.c#d@e", None),
        ("http://[::1]:80/@a", None),
        ("https://a.com: cannot read; write to mailto:me@example.org", None),
        ("gs://bucket/a@b/c:d@e", None),
        ('{"a": "http://host", "b": "c@d.e", "c": ["http://h:1", "x:y@z"]}', None),
        ("12:30:05 me@host:22", None),
        ("12:30:45@x:1", None),
        ("//user:secret@h/x", "//***@h/x"),
        ("http:/user:secret@h", "http:/***@h"),
    ],
)
def test_user_and_password_are_masked_and_nothing_else(text: str, shown: str | None) -> None:
    assert mask_credentials(text) == (shown or text)
    assert mask_credentials(mask_credentials(text)) == mask_credentials(text)
    assert json.loads(mask_credentials(json.dumps([text]))) == [shown or text]


def test_a_long_text_without_credentials_is_masked_in_linear_time() -> None:
    for part in ("://a:b", "a:", "://", "a:b@"):
        text = part * 10_000
        assert len(mask_credentials(text)) <= len(text)


def test_errors_are_masked_before_they_are_shortened() -> None:
    for kind in (UsageError, StorageError, TaskError):
        message = str(kind("x" * 985 + "http://user:secret-secret-secret-secret@host/" + "y" * 3000))
        assert "secret" not in message
    assert str(UsageError("http://u:secret@h/: no such file")) == "http://***@h/: no such file"


def test_a_run_records_and_shows_no_password(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = "file://user:secret@host/corpus"
    commands = [
        ["dedup", "docs.jsonl", "--workers", "1"],
        ["dedup", "docs.jsonl", "--workers", "1", "--threshold", "0.6", "--json"],
        ["train-bpe", "--workers", "1", "--vocab-size", "300"],
        ["tokenize", "--workers", "1"],
        ["status"],
        ["status", "--json"],
        ["dedup", "http://user:secret@127.0.0.1:9/x", "--workers", "-1"],
        ["dedup", "user:secret@host:80"],
        ["dedup", "s3://KEY:se/cret@bucket/x", "--debug"],
        ["http://user:secret@host/"],
        ["dedup", "--http://user:secret@host/"],
    ]
    monkeypatch.setenv("WEBTEXT_DEBUG", "")  # so that it is restored afterwards
    for command in commands:
        options = [] if len(command) == 1 and "//" in command[0] else ["--corpus", corpus]
        monkeypatch.setattr(sys, "argv", ["webtext", *command, *options])
        main([*command, *options])
    assert main(["init", f"{corpus}/new", "--json"]) == 0
    shown = capsys.readouterr()
    assert "secret" not in shown.out + shown.err
    assert '{"path": "file://***@host/corpus/new/webtext.toml"}' in shown.out.splitlines()
    assert "in file://***@host/corpus/dedup" in shown.out
    assert "Use --overwrite" in shown.err
    files = [path for path in Path("user:secret@host").rglob("*") if path.is_file()]
    assert {"runs.log", "manifest.json", "index.html"} <= {path.name for path in files}
    for path in files:
        assert b"secret" not in path.read_bytes(), path
    assert "cret@" not in shown.err


def test_links_in_data_keep_what_they_have(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "SELECT url FROM documents", "-i", "docs.jsonl", "--json"]) == 0
    assert '{"url": "http://user:pw3@a.com/3"}' in capsys.readouterr().out.splitlines()
    assert main(["export-text", "-i", "docs.jsonl", "-o", "out.jsonl"]) == 0
    assert "user:pw3@" in Path("out.jsonl").read_text()


def test_another_password_is_not_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[list[str]] = []
    monkeypatch.setattr(archives, "open_index", lambda paths, _records: opened.append(list(paths)))
    fetch = FetchConfig(archive=("commoncrawl",), cc_index=("http://user:one@host/a.parquet",))
    other = dataclasses.replace(fetch, cc_index=("http://user:two@host/a.parquet",))
    assert archives.archives_input(fetch) == archives.archives_input(other)
    assert opened == [["http://user:one@host/a.parquet"], ["http://user:two@host/a.parquet"]]
    third = dataclasses.replace(fetch, cc_index=("http://user:two@host/b.parquet",))
    assert archives.archives_input(third) != archives.archives_input(other)
    identities = [identity_of(FilterConfig(profile=(f"https://u:{password}@h/a.toml",))) for password in "ab"]
    assert identities[0] == identities[1]
    assert identities[0]["profile"] == ["https://***@h/a.toml"]
    assert names_below_common_folder(["http://u:p@a/x", "http://u:p@b/x"]) == ["***@a/x", "***@b/x"]


class _Ranges(BaseHTTPRequestHandler):
    """Serves the same documents at every address that ends with .jsonl."""

    protocol_version = "HTTP/1.1"
    content = b""

    def log_message(self, *_values: object) -> None:
        pass

    def do_GET(self) -> None:
        found = self.path.endswith(".jsonl")
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first) if first else len(self.content) - int(last)
        part = self.content[start : int(last) + 1 if first and last else None] if found else b""
        self.send_response((206 if "Range" in self.headers else 200) if found else 404)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    do_HEAD = do_GET  # noqa: N815


def test_a_run_resumes_with_another_password(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore", reason="needs the package obstore: pip install '.[object-stores]'")
    _Ranges.content = Path("docs.jsonl").read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Ranges)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for password in ("one", "two"):
            url = f"http://user:{password}-secret@127.0.0.1:{server.server_port}/docs.jsonl"
            assert main(["remove-wikipedia", url, "-o", "out", "--workers", "1"]) == 0
    finally:
        server.shutdown()
        server.server_close()
    shown = capsys.readouterr()
    assert "already complete; checksums verified" in shown.err
    assert not [path for path in Path("out").rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_a_proxy_without_a_host_is_an_error_of_the_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@")
    command = ["scrape", "--source", "arctic-shift", "--subreddit", "a", "--api-url", "http://arctic.test", "-o", "out"]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert "http_proxy: is not the address of a proxy" in shown
    assert "secret" not in shown


@pytest.mark.parametrize("arguments", [["--api-url", "http://user:secret@127.0.0.1:9"], []])
def test_services_and_proxies_are_named_without_password(
    folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    monkeypatch.setenv("WEBTEXT_DEBUG", "")  # so that it is restored afterwards
    if not arguments:
        monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
        arguments = ["--api-url", "http://arctic.test"]
    command = ["scrape", "--source", "arctic-shift", "--subreddit", "a", *arguments, "-o", "out", "--debug"]
    assert main(command) == 1
    shown = capsys.readouterr().err
    assert "connection refused" in shown
    assert "secret" not in shown
    assert not [path for path in folder.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
