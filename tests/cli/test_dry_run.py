"""`webtext build` from one's own texts, with skipped stages, and `--dry-run`: what would run, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.corpus_config import CorpusConfig
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.stage import filter as filter_documents
from webtext_cli.main import main

_QUIET = ["--corpus", "corpus", "--workers", "1", "-q"]
_TEXTS = ["dedup", "remove-wikipedia", "train-bpe", "tokenize"]
_ALL = ["scrape", "fetch", "extract", *_TEXTS]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus whose dedup reads one's own texts."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_texts(folder / "texts.jsonl", 40)
    write_toml(folder, '[dedup]\ninput = ["texts.jsonl"]\n')
    return folder


def write_texts(path: Path, count: int, first: int = 0) -> None:
    rows = [
        {
            "id": f"d{number}",
            "url": f"http://a.com/{number}",
            "text": f"some words of document {number}, more of {number}",
        }
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_toml(corpus: Path, tables: str, build: str = f"[build]\nstages = {json.dumps(_ALL)}\n") -> None:
    (corpus / "webtext.toml").write_text(f"{build}\n{tables}\n[train-bpe]\nvocab_size = 300\n")


def plan(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> dict[str, Any]:
    """Return the plan by stage."""
    capsys.readouterr()
    assert main(["build", *_QUIET, "--dry-run", "--json", *options]) == code
    return {stage["stage"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}


@pytest.mark.parametrize(
    ("tables", "stages"),
    [
        ({"dedup": {"input": ["a.txt"]}}, _TEXTS),
        ({"remove-wikipedia": {"input": ["a.txt"]}}, _TEXTS[1:]),
        ({"fetch": {"input": ["urls.txt"]}}, _ALL[1:]),
        ({"extract": {"input": ["pages/"]}}, _ALL[2:]),
        ({"tokenize": {"input": ["a.txt"]}}, _ALL),
        ({"dedup": {"input": ["a.txt"]}, "build": {"skip": ["remove-wikipedia"]}}, ["dedup", "train-bpe", "tokenize"]),
        ({"build": {"skip": ["dedup", "remove-wikipedia"]}}, ["scrape", "fetch", "extract", "train-bpe", "tokenize"]),
    ],
)
def test_stages_are_left_out_that_nothing_reads(tables: dict[str, Any], stages: list[str]) -> None:
    config = CorpusConfig("nowhere")
    config.tables = tables
    assert config.stages(None, None) == stages


def test_a_stage_reads_its_own_input_or_that_of_a_skipped_stage() -> None:
    config = CorpusConfig("nowhere")
    config.tables = {"build": {"skip": ["dedup", "remove-wikipedia"]}}
    assert config.sources("tokenize") == {"documents": "nowhere/extract", "tokenizer": "nowhere/train-bpe"}
    config.tables["dedup"] = {"input": ["a.txt", "/b.txt"]}
    assert config.sources("train-bpe") == {"documents": ["nowhere/a.txt", "/b.txt"]}
    assert config.upstream("tokenize") == {"tokenizer": "train-bpe"}
    config.tables["fetch"] = {"input": ["urls.txt"]}
    assert config.sources("extract") == {"pages": "nowhere/fetch", "links": None}
    config.tables["build"] = {"skip": ["fetch"]}
    with pytest.raises(UsageError, match="fetch cannot be skipped; only filter, dedup, remove-wikipedia can"):
        config.stages(None, None)


def test_a_corpus_without_the_filter_reads_what_extract_wrote(tmp_path: Path) -> None:
    config = CorpusConfig(str(tmp_path))
    assert config.upstream("dedup") == {"documents": "extract"}
    config.tables = {"build": {"stages": _ALL}}
    assert config.upstream("dedup") == {"documents": "extract"}
    config.tables = {"build": {"stages": [*_ALL, "filter"]}}
    assert config.upstream("dedup") == {"documents": "filter"}
    assert config.stages(None, "dedup") == ["scrape", "fetch", "extract", "filter", "dedup"]
    config.tables = {"build": {"stages": [*_ALL, "filter"], "skip": ["filter"]}}
    assert config.upstream("dedup") == {"documents": "extract"}
    config.tables = {}
    text = tmp_path / "a.txt"
    text.write_text(" ".join(f"word{number}" for number in range(100)))
    filter_documents(FilterConfig(), documents=str(text), output=f"{tmp_path}/filter", options=RunOptions())
    assert CorpusConfig(str(tmp_path)).upstream("dedup") == {"documents": "filter"}


def test_a_build_of_ones_own_texts(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *_QUIET]) == 0
    assert sorted(path.name for path in corpus.iterdir() if path.is_dir()) == sorted(_TEXTS)
    assert read_manifest(str(corpus / "tokenize")).records_in == 40
    capsys.readouterr()
    assert main(["dedup", *_QUIET, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records_in"] == 40, "the single command reads the same"
    write_toml(corpus, '[dedup]\ninput = ["gone.jsonl"]\n')
    assert main(["build", *_QUIET]) == 1
    assert "corpus/gone.jsonl: no such file; it is named in [dedup] of corpus/webtext.toml" in capsys.readouterr().err


def test_a_build_with_a_skipped_stage(corpus: Path) -> None:
    write_toml(corpus, '[dedup]\ninput = ["texts.jsonl"]\n', '[build]\nskip = ["remove-wikipedia"]\n')
    assert main(["build", *_QUIET]) == 0
    assert not (corpus / "remove-wikipedia").exists()
    documents = read_manifest(str(corpus / "tokenize")).identity.inputs["documents"]
    assert documents == read_manifest(str(corpus / "dedup")).fingerprint()


def test_an_own_input_that_contains_the_output_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_toml(corpus, '[dedup]\ninput = ["dedup/texts.jsonl"]\n')
    assert main(["dedup", *_QUIET]) == 2
    assert "overlap" in capsys.readouterr().err


def test_a_dry_run_of_a_new_corpus_writes_nothing(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = plan(capsys)
    assert {name: (stage["action"], stage["reason"]) for name, stage in stages.items()} == dict.fromkeys(
        _TEXTS, ("run", "new")
    )
    size = (corpus / "texts.jsonl").stat().st_size
    assert (stages["dedup"]["disk_bytes"], stages["dedup"]["basis"]) == (size, "1 times its input")
    assert (stages["train-bpe"]["disk_bytes"], stages["train-bpe"]["basis"]) == (None, "not estimated")
    assert [path.name for path in corpus.iterdir() if path.is_dir()] == []
    assert main(["build", *_QUIET, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in printed.splitlines() if line.strip()}
    assert rows["dedup"].startswith("run new about ")
    assert rows["train-bpe"] == "run new not estimated"
    assert "(without work files), " in printed


def test_a_dry_run_after_a_failed_build_decides_as_the_next_build_does(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "texts.jsonl").write_text('{"body": "the text is in another field"}\n')
    assert main(["build", *_QUIET]) == 1
    write_toml(corpus, '[dedup]\ninput = ["texts.jsonl"]\ntext_field = "body"\n')
    stages = plan(capsys)
    assert (stages["dedup"]["action"], stages["dedup"]["reason"]) == ("run", 'text_field was "text", is now "body"')
    assert main(["dedup", *_QUIET]) == 0
    assert "starting again" in capsys.readouterr().err


def test_messages_name_the_command_with_its_corpus_and_the_input_to_set(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenize", *_QUIET]) == 1
    assert "run `webtext remove-wikipedia --corpus corpus` first" in capsys.readouterr().err
    write_toml(corpus, "", '[build]\nstages = ["dedup", "filter"]\n')
    assert main(["build", *_QUIET]) == 2
    assert 'add --from extract, or set input = ["PATH"] in [filter] of corpus/webtext.toml' in capsys.readouterr().err


def test_a_dry_run_says_why_each_stage_runs(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *_QUIET]) == 0
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*") if path.is_file()}
    assert {(stage["action"], stage["reason"], stage["disk_bytes"]) for stage in plan(capsys).values()} == {
        ("keep", "up to date", 0)
    }
    write_toml(corpus, '[dedup]\ninput = ["texts.jsonl"]\nthreshold = 0.7\n')
    stages = plan(capsys, code=1)
    assert (stages["dedup"]["action"], stages["dedup"]["reason"]) == (
        "refuse",
        "threshold was 0.8, is now 0.7 (needs --overwrite)",
    )
    assert main(["build", *_QUIET, "--dry-run"]) == 1
    assert "threshold was 0.8, is now 0.7 (needs --overwrite)" in capsys.readouterr().out
    stages = plan(capsys, "--overwrite")
    assert (stages["dedup"]["action"], stages["dedup"]["reason"]) == ("rebuild", "threshold was 0.8, is now 0.7")
    assert stages["dedup"]["basis"] == "1 times its input"
    reason = "its input 'documents' has changed, since dedup will change"
    assert (stages["remove-wikipedia"]["action"], stages["remove-wikipedia"]["reason"]) == ("rebuild", reason)
    assert stages["remove-wikipedia"]["basis"] == "1 times its input"
    assert stages["tokenize"]["reason"] == (
        "its input 'documents' has changed; its input 'tokenizer' has changed, "
        "since remove-wikipedia and train-bpe will change"
    )
    after = {path: path.stat().st_mtime_ns for path in corpus.rglob("*") if path.is_file()}
    after.pop(corpus / "webtext.toml")
    assert after == {path: time for path, time in before.items() if path.name != "webtext.toml"}


def test_a_dry_run_shows_an_unfinished_stage(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.engine.stage_run.write_manifest", stop)
        assert main(["build", *_QUIET]) == 130
    stages = plan(capsys)
    assert stages["dedup"]["action"] == "resume"
    assert stages["dedup"]["reason"].startswith("unfinished; ")
    assert stages["dedup"]["reason"].endswith("tasks already complete")


def test_a_build_rebuilds_what_reads_a_changed_stage(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *_QUIET]) == 0
    write_texts(corpus / "more.jsonl", 10, first=40)
    write_toml(corpus, '[dedup]\ninput = ["*.jsonl"]\n')
    assert main(["build", *_QUIET]) == 1, "whether these files contain what was read before is not known"
    assert "its input 'documents' has changed. Use --overwrite" in capsys.readouterr().err
    assert main(["dedup", *_QUIET, "--overwrite"]) == 0
    assert main(["remove-wikipedia", *_QUIET]) == 1, "a single command does not"
    capsys.readouterr()
    assert main(["build", *_QUIET]) == 0
    notes = capsys.readouterr().err
    assert "note: remove-wikipedia: is rebuilt as a whole (its input 'documents' has changed)" in notes
    assert read_manifest(str(corpus / "tokenize")).records_in == 50


def test_a_dry_run_refuses_what_the_build_would_refuse(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"Body": ["a text"]}), corpus / "own.parquet")
    write_toml(corpus, '[dedup]\ninput = ["own.parquet"]\n')
    for command in (["build", "--dry-run", "--corpus", "corpus"], ["build", *_QUIET]):
        assert main(command) == 1
        assert "own.parquet: has no column 'text'" in capsys.readouterr().err
    (corpus / "webtext.toml").unlink()
    assert main(["build", "--dry-run", "--corpus", "corpus"]) == 1
    assert "corpus: is not a corpus (no webtext.toml and no folder of a stage)" in capsys.readouterr().err
