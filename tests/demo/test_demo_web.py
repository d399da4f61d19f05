"""The demo's web: real pages under several hosts, and nothing beyond them."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from pipelines.demo import web as pages
from pipelines.demo.corpus import write_demo_corpus
from pipelines.demo.web import demo_web
from pipelines.errors import UsageError
from webtext_cli.commands.demo import command as demo_command


@pytest.fixture(scope="module")
def web() -> Iterator[None]:
    with demo_web():
        yield


def _get(url: str) -> tuple[int, str]:
    # The proxy of the environment, which the demo has set, is what leads there.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler())
    try:
        with opener.open(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.usefixtures("web")
@pytest.mark.parametrize(
    ("url", "status", "text"),
    [
        (f"http://{pages.MODULES_HOST}/heapq.html", 200, "priority"),
        (f"http://{pages.PACKAGES_HOST}/json.decoder.html", 200, "JSONDecoder"),
        (f"http://{pages.MODULES_HOST}/robots.txt", 200, "Disallow"),
        (f"http://{pages.MODULES_HOST}/no_such_module.html", 404, "No such page"),
        ("http://example.org/", 502, "no such host in the demo's web"),
    ],
)
def test_pages_of_known_hosts_are_served_and_no_others(url: str, status: int, text: str) -> None:
    actual_status, body = _get(url)
    assert actual_status == status
    assert text in body


@pytest.mark.usefixtures("web")
def test_every_host_of_the_routes_has_a_page() -> None:
    first = {url.split("/")[2]: url for url in reversed(pages.demo_routes())}
    assert set(first) == {
        pages.MODULES_HOST, pages.PACKAGES_HOST, pages.TOPICS_HOST, pages.MIRROR_HOST, pages.WIKIPEDIA_HOST,
    }  # fmt: skip
    for url in first.values():
        status, body = _get(url)
        assert (status, "could not find object" in body) == (200, False), url


def test_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    before = dict(os.environ)
    with demo_web():
        assert os.environ["http_proxy"] == os.environ["HTTPS_PROXY"] != before["http_proxy"]
    assert dict(os.environ) == before


def test_there_are_hundreds_of_pages() -> None:
    assert len(pages.demo_routes()) > 300


def test_the_dump_has_links_and_every_kind_of_drop(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_demo_corpus(str(tmp_path / name))
    data = (tmp_path / "one" / "dumps" / "RS_2017-11.zst").read_bytes()
    assert data == (tmp_path / "two" / "dumps" / "RS_2017-11.zst").read_bytes()
    rows = [json.loads(line) for line in zstandard.decompress(data).splitlines()]
    assert len(rows) == len({row["id"] for row in rows})
    kinds = Counter(
        "self" if row["is_self"] else "low" if row["score"] < 3 else "nsfw" if row["over_18"] else "link"
        for row in rows
    )
    assert kinds["low"] > 10
    assert kinds["self"] == 20
    assert kinds["nsfw"] == 1
    urls = [row["url"] for row in rows]
    for part in ("utm_source=", "#top", "gone-3.html", "i.imgur.com", "en.wikipedia.org", "ftp://"):
        assert any(part in url for url in urls), part


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "RS_2017-11.zst").write_bytes(b"a real dump")
    with pytest.raises(UsageError, match=r"contains other files \(dumps, ...\); name a new folder with --corpus"):
        write_demo_corpus(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["dumps"]
    assert (tmp_path / "dumps" / "RS_2017-11.zst").read_bytes() == b"a real dump"


def test_the_demo_ignores_the_corpus_of_the_environment() -> None:
    (option,) = [parameter for parameter in demo_command.params if parameter.name == "corpus"]
    assert option.envvar is None


def test_the_corpus_is_laid_out_once(tmp_path: Path) -> None:
    corpus = tmp_path / "demo"
    write_demo_corpus(str(corpus))
    (corpus / "webtext.toml").write_text("# mine now\n")
    write_demo_corpus(str(corpus))
    assert (corpus / "webtext.toml").read_text() == "# mine now\n"
    for name in ("language-reference", "builtins"):
        lines = (corpus / "benchmarks" / f"{name}.jsonl").read_text().splitlines()
        assert len(lines) > 50
        assert all(json.loads(line)["text"] for line in lines)
