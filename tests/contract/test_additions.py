"""`webtext build` after another month and after retries: the result of all months at once, with few requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import small_web
from contract_cases import outcome

from pipelines.engine.manifest import read_manifest
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")

_STAGES = ["scrape", "fetch", "extract", "dedup", "remove-wikipedia", "train-bpe", "tokenize"]
_TOML = f"""
[build]
stages = {json.dumps(_STAGES)}
[scrape]
dumps = ["dumps/*"]
shards = 3
[fetch]
per_host_delay = 0.0
retries = 0
[train-bpe]
vocab_size = 400
[tokenize]
held_out = 0.2
"""
_STORED = ("fetched_at", "warc_file", "warc_offset")


@pytest.fixture(scope="module")
def web_pages() -> dict[str, bytes]:
    return small_web.pages()


@pytest.fixture(autouse=True)
def _web(web_pages: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with small_web.served(web_pages, tmp_path) as environment:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        yield


def _corpus(folder: Path) -> Path:
    (folder / "dumps").mkdir(parents=True)
    (folder / "webtext.toml").write_text(_TOML)
    return folder


def _build(corpus: Path, *options: str) -> int:
    return main(["build", "--corpus", str(corpus), "--workers", "1", "-q", *options])


def _rows(corpus: Path, stage: str, noun: str) -> list[dict[str, Any]]:
    """Return the rows of a stage without where and when pages were stored."""
    return [
        {name: value for name, value in row.items() if name not in _STORED}
        for path in sorted((corpus / stage).glob(f"{noun}-*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def test_a_build_after_another_month_does_what_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at_once, corpus = _corpus(tmp_path / "at-once"), _corpus(tmp_path / "corpus")
    months = [Path(path) for path in small_web.write_dumps(at_once / "dumps")]
    assert _build(at_once) == 0
    shutil.copy(months[0], corpus / "dumps")
    assert _build(corpus) == 0
    few = read_manifest(str(corpus / "fetch")).records_in
    shutil.copy(months[1], corpus / "dumps")
    capsys.readouterr()
    assert _build(corpus, "--dry-run") == 0
    plan = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1)
    assert [plan[stage] for stage in _STAGES] == ["add"] * 3 + ["rebuild"] * 4
    assert _build(corpus) == 0
    notes = capsys.readouterr().err
    assert "scrape: is added to (its input 'RS_2016-02.xz' is new)" in notes
    assert "fetch: is added to (its input 'links' has changed)" in notes
    assert "extract: is added to (its input 'links' has changed; its input 'pages' has changed)" in notes
    assert "dedup: is rebuilt as a whole (its input 'documents' has changed)" in notes
    assert few < read_manifest(str(corpus / "fetch")).records_in
    assert outcome(corpus / "scrape") == outcome(at_once / "scrape")
    assert _rows(corpus, "fetch", "pages") == _rows(at_once, "fetch", "pages")
    for stage in ("extract", "dedup", "remove-wikipedia"):
        for noun in ("documents", "dropped"):
            assert _rows(corpus, stage, noun) == _rows(at_once, stage, noun), stage
    for name in ("train-bpe/tokenizer.json", "tokenize/train-00000.bin", "tokenize/held-out-00000.bin"):
        assert (corpus / name).read_bytes() == (at_once / name).read_bytes()
    # Extracted as a whole from the same pages, the bytes are the same.
    options = ["-i", str(corpus / "fetch"), "--links", str(corpus / "scrape"), "-o", str(tmp_path / "whole"), "-q"]
    assert main(["extract", *options, "--workers", "1"]) == 0
    assert outcome(tmp_path / "whole") == outcome(corpus / "extract")
    capsys.readouterr()
    assert _build(corpus, "--dry-run", "--json") == 0
    assert {stage["action"] for stage in json.loads(capsys.readouterr().out)["stages"]} == {"keep"}


def test_the_links_of_an_unfinished_fetch_are_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = _corpus(tmp_path / "corpus")
    _, second = map(Path, small_web.write_dumps(corpus / "dumps"))
    second.rename(tmp_path / second.name)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    assert _build(corpus, "--to", "scrape") == 0
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.engine.stage_run.write_manifest", stop)
        assert _build(corpus, "--to", "fetch") == 130
    (tmp_path / second.name).rename(second)
    links = outcome(corpus / "scrape")
    capsys.readouterr()
    for options in ([], ["--dry-run"]):
        assert _build(corpus, *options) == 1
        assert "fetch: an unfinished fetch reads the links, so scrape cannot change them (its input" in (
            capsys.readouterr().err
        )
    assert outcome(corpus / "scrape") == links
    assert main(["fetch", "--corpus", str(corpus), "-q", "--workers", "1"]) == 0
    assert _build(corpus, "--to", "fetch") == 0


def test_a_build_after_a_retry_extracts_what_was_retried(
    tmp_path: Path, web_pages: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = _corpus(tmp_path / "corpus")
    small_web.write_dumps(corpus / "dumps")
    gone = "http://alpha.com/page-4.html"
    page = web_pages.pop(gone)
    assert _build(corpus) == 0
    web_pages[gone] = page
    before = read_manifest(str(corpus / "extract")).records_in
    assert main(["fetch", "--corpus", str(corpus), "-q", "--workers", "1", "--retry", "http_not_found"]) == 0
    assert _build(corpus) == 0
    assert read_manifest(str(corpus / "extract")).records_in == before + 1
    assert gone in {row["url"] for row in _rows(corpus, "extract", "documents")}
