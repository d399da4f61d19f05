"""Corpora with and without `filter`: `build`, `status`, `explain` and single commands agree on which these are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.corpus_config import CorpusConfig
from pipelines.engine.manifest import Identity, Manifest, ShardEntry, read_manifest, write_manifest
from pipelines.records import shards
from webtext_cli.main import main

_LISTED = ["scrape", "fetch", "extract", "dedup", "remove-wikipedia"]
_FROM_BEFORE = pytest.mark.parametrize("toml", ["", f"[build]\nstages = {json.dumps(_LISTED)}\n"])
_QUIET = ["--corpus", "corpus", "--workers", "1", "-q"]
_WITH_FILTER = f"[build]\nstages = {json.dumps([*_LISTED, 'filter'])}\n"


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus with a finished extract, of four documents of which filter drops the last one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "corpus"
    folder.mkdir()
    _write_extract(folder, [*(_long_text(number) for number in range(3)), "short"])
    return folder


def _long_text(number: int) -> str:
    return " ".join(f"{word} {number * 40 + position}" for position, word in enumerate(["word", "text", "page"] * 12))


def _write_extract(corpus: Path, texts: Sequence[str]) -> None:
    folder = str(corpus / "extract")
    schema = pa.schema([("id", pa.string()), ("url", pa.string()), ("text", pa.string())])
    with shards.write_shard(folder, shards.shard_name("documents", 0), schema) as output:
        for number, text in enumerate(texts):
            output.write({"id": f"{number:032x}", "url": f"http://a.com/{number}", "text": text})
    entry = ShardEntry("shards", "0", len(texts), len(texts), files=(output.entry,))
    write_manifest(folder, Manifest(Identity("extract", 1, {}, {}), (entry,)))


def _json(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*command, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def _actions(capsys: pytest.CaptureFixture[str], first: str) -> dict[str, str]:
    stages = _json(capsys, "build", *_QUIET, "--dry-run", "--from", first, "--to", "dedup")["stages"]
    return {stage["stage"]: stage["action"] for stage in stages}


def _build(first: str) -> None:
    assert main(["build", *_QUIET, "--from", first, "--to", "dedup"]) == 0


def _states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    stages = _json(capsys, "status", "--corpus", "corpus")["stages"]
    return {stage["stage"]: stage["state"] for stage in stages}


def _explained(capsys: pytest.CaptureFixture[str], number: int, code: int = 0) -> list[tuple[str, str]]:
    history = _json(capsys, "explain", f"http://a.com/{number}", "--corpus", "corpus", code=code)
    return [(step["stage"], step["outcome"]) for step in history["steps"]]


def _dedup_reads(corpus: Path, stage: str) -> bool:
    documents = read_manifest(str(corpus / "dedup")).identity.inputs["documents"]
    return documents == read_manifest(str(corpus / stage)).fingerprint()


@_FROM_BEFORE
def test_a_corpus_from_before_the_stage_stays_as_it_is(
    corpus: Path, toml: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "webtext.toml").write_text(toml)
    _build("dedup")
    assert _dedup_reads(corpus, "extract")
    assert _actions(capsys, "dedup") == {"dedup": "keep"}
    states = _states(capsys)
    assert "filter" not in states
    assert (states["extract"], states["dedup"], states["pretrain"]) == ("done", "done", "-")
    assert _explained(capsys, 3) == [("extract", "kept"), ("dedup", "kept")]


def test_a_corpus_that_lists_the_stage_has_it(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "webtext.toml").write_text(_WITH_FILTER)
    assert _states(capsys)["filter"] == "-"
    assert _actions(capsys, "filter") == {"filter": "run", "dedup": "run"}
    _build("filter")
    assert _dedup_reads(corpus, "filter")
    assert _states(capsys)["filter"] == "done"
    assert _explained(capsys, 0) == [("extract", "kept"), ("filter", "kept"), ("dedup", "kept")]
    assert _explained(capsys, 3, code=1) == [("extract", "kept"), ("filter", "dropped")]


def test_a_skipped_stage_is_not_read_even_with_a_result(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "webtext.toml").write_text(f'{_WITH_FILTER}skip = ["filter"]\n')
    _build("dedup")
    assert _dedup_reads(corpus, "extract")
    assert "filter" not in _states(capsys)
    assert main(["filter", *_QUIET]) == 0
    assert _actions(capsys, "dedup") == {"dedup": "keep"}
    assert _states(capsys)["filter"] == "done"
    assert _explained(capsys, 3) == [("extract", "kept"), ("dedup", "kept")]


@_FROM_BEFORE
def test_a_result_makes_the_stage_part_of_the_corpus(
    corpus: Path, toml: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "webtext.toml").write_text(toml)
    assert main(["filter", *_QUIET]) == 0
    assert main(["dedup", *_QUIET]) == 0
    assert _dedup_reads(corpus, "filter")
    # Without filter, a build would not pass new documents on to dedup.
    assert CorpusConfig("corpus").stages("extract", "dedup") == ["extract", "filter", "dedup"]
    _write_extract(corpus, [_long_text(number) for number in range(5)])
    assert _actions(capsys, "filter") == {"filter": "rebuild", "dedup": "rebuild"}
    _build("filter")
    assert _dedup_reads(corpus, "filter")
    assert read_manifest(str(corpus / "dedup")).records_in == 5


@_FROM_BEFORE
def test_a_build_from_the_stage_adds_it_to_the_corpus(
    corpus: Path, toml: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "webtext.toml").write_text(toml)
    _build("dedup")
    assert _actions(capsys, "filter") == {"filter": "run", "dedup": "rebuild"}
    _build("filter")
    assert _dedup_reads(corpus, "filter")
