"""`webtext build` and `status`: which stages run, in which order, and what is checked before the first one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines.corpus_config import DEFAULT_STAGES, CorpusConfig
from pipelines.engine.folder_lock import folder_lock
from pipelines.errors import UsageError
from webtext_cli.main import main


@pytest.mark.parametrize(
    ("tables", "first", "last", "stages"),
    [
        ({}, None, None, list(DEFAULT_STAGES)),
        ({}, "dedup", "train-bpe", ["dedup", "remove-wikipedia", "train-bpe"]),
        ({}, None, "extract", ["scrape", "fetch", "extract"]),
        ({}, "tokenize", "pretrain", ["tokenize", "pretrain"]),
        ({"build": {"stages": ["tokenize", "scrape"]}}, None, None, ["scrape", "tokenize"]),
        ({"build": {"stages": ["scrape", "overlap-report"]}}, "fetch", None, ["fetch", "overlap-report"]),
    ],
)
def test_the_stages_of_a_build(tables: dict[str, Any], first: str | None, last: str | None, stages: list[str]) -> None:
    config = CorpusConfig("nowhere")
    config.tables = tables
    assert config.stages(first, last) == stages


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('stages = ["scrap"]', r"\[build\] stages: unknown stage 'scrap'; did you mean scrape\?"),
        ('stages = "scrape"', r"webtext.toml \[build\]: stages = 'scrape': expected a list"),
        ('stage = ["scrape"]', r"webtext.toml \[build\]: unknown option 'stage'; did you mean stages\?"),
    ],
)
def test_an_invalid_list_of_stages_is_refused(table: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "webtext.toml").write_text(f"[build]\n{table}\n")
    with pytest.raises(UsageError, match=message):
        CorpusConfig(str(tmp_path)).stages(None, None)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus folder with one dump and a webtext.toml that lists one stage."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "corpus"
    (folder / "dumps").mkdir(parents=True)
    rows = [
        {"id": f"a{number}", "url": f"http://site{number}.com/", "score": 9, "title": "t", "subreddit": "s"}
        | {"created_utc": 1400000000 + number, "is_self": False, "over_18": False, "domain": "site.com"}
        for number in range(5)
    ]
    (folder / "dumps" / "RS_2014-05.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "webtext.toml").write_text('[build]\nstages = ["scrape"]\n[scrape]\ndumps = ["dumps/*"]\nshards = 2\n')
    return folder


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_relative_paths_of_the_toml_start_at_the_corpus(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--corpus", "corpus", "--workers", "1", "--json", "-q"]) == 0
    (summary,) = _json(capsys)["stages"]
    assert (summary["stage"], summary["records_in"], summary["records_out"]) == ("scrape", 5, 5)
    assert (corpus / "scrape" / "links-00001.parquet").exists()


def test_a_corpus_has_a_page_with_its_stages_and_links_to_their_reports(corpus: Path) -> None:
    index = corpus / "index.html"
    assert main(["build", "--corpus", "corpus", "--workers", "1", "-q"]) == 0
    assert '<th scope="row">scrape</th>' in index.read_text()
    documents = corpus / "docs.jsonl"
    documents.write_text('{"text": "one"}\n{"text": "one"}\n')
    assert main(["dedup", "--corpus", "corpus", "--input", str(documents), "--workers", "1", "-q"]) == 0
    page = index.read_text()
    assert '<a href="dedup/report.html">dedup</a>' in page
    assert re.search(r"dedup</a>.*\s.*>2<.*>1<.*>1<.*\d{4}-\d\d-\d\d\s\d\d:\d\d", page)
    # The report itself has what determines it, and neither path nor date.
    report = (corpus / "dedup" / "report.html").read_text()
    assert "webtext dedup, version" in report
    assert "ngram 5" in report
    assert str(corpus) not in report
    index.unlink()
    assert main(["dedup", "-i", str(documents), "-o", str(corpus / "other"), "--workers", "1", "-q"]) == 0
    assert not index.exists()
    index.write_text("<p>mine</p>")
    assert main(["build", "--corpus", "corpus", "--workers", "1", "-q"]) == 0
    assert index.read_text() == "<p>mine</p>"
    elsewhere = corpus.parent / "elsewhere"
    assert main(["dedup", "--corpus", str(elsewhere), "--input", str(documents), "--workers", "1", "-q"]) == 0
    (elsewhere / "evaluate").mkdir()
    (elsewhere / "evaluate" / "report.html").write_text("")
    assert main(["dedup", "--corpus", str(elsewhere), "--input", str(documents), "--workers", "1", "-q"]) == 0
    assert re.search(r"evaluate</a>.*done.*\d{4}-\d\d-\d\d \d\d:\d\d", (elsewhere / "index.html").read_text())


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_page_of_the_corpus_that_cannot_be_written_is_a_note(
    corpus: Path, capsys: pytest.CaptureFixture[str], is_folder: bool
) -> None:
    (corpus / "docs.jsonl").write_text('{"text": "one"}\n')
    if is_folder:
        (corpus / "index.html").mkdir()
    else:
        (corpus / "webtext.toml").write_text('[build]\nskip = ["extract"]\n')
    assert main(["dedup", "--corpus", str(corpus), f"{corpus}/docs.jsonl", "--workers", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["records_out"] == 1
    assert "index.html: was not written (" in printed.err


def test_reports_are_no_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.jsonl").write_text('{"text": "one of a few words"}\n')
    for stage in ("dedup", "filter", "train-bpe"):
        options = {"filter": ["--profile=none"], "train-bpe": ["--min-frequency=1", "--vocab-size=258"]}.get(stage, [])
        assert main([stage, str(tmp_path / "docs.jsonl"), "-o", str(tmp_path / stage), "-q", *options]) == 0
    capsys.readouterr()
    assert main(["status", *(f"-i{tmp_path / stage}" for stage in ("dedup", "filter", "train-bpe")), "--json"]) == 0
    assert [stage["shards"] for stage in _json(capsys)["stages"]] == [1, 1, 1]


def test_status_shows_done_unfinished_and_damaged_stages(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--corpus", "corpus", "--workers", "1", "-q"]) == 0
    (corpus / "fetch" / "_journal").mkdir(parents=True)
    capsys.readouterr()
    assert main(["status", "--corpus", "corpus", "--verify", "--json"]) == 0
    states = {stage["stage"]: stage for stage in _json(capsys)["stages"]}
    assert (states["scrape"]["state"], states["fetch"]["state"], states["dedup"]["state"]) == (
        "done",
        "unfinished",
        "-",
    )
    assert (states["scrape"]["records_in"], states["scrape"]["records_out"]) == (5, 5)
    assert states["scrape"]["shards"] == 2
    assert states["scrape"]["size_bytes"] > 0
    (corpus / "scrape" / "links-00001.parquet").unlink()
    assert main(["status", "--corpus", "corpus", "--verify"]) == 1
    printed = capsys.readouterr()
    assert "links-00001.parquet: is missing" in printed.err
    assert "unfinished" in printed.out
    assert "damaged" in printed.out
    assert "re-run the stage" in printed.err


def test_status_shows_a_broken_manifest_among_the_others(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrape", "--corpus", "corpus", "--workers", "1", "-q"]) == 0
    (corpus / "fetch").mkdir()
    (corpus / "fetch" / "manifest.json").write_text('{"format": 9}')
    capsys.readouterr()
    assert main(["status", "--corpus", "corpus"]) == 1
    printed = capsys.readouterr()
    assert re.search(r"scrape +done.*\n.*fetch +damaged", printed.out)
    assert "fetch/manifest.json: has format 9, this version reads 1" in printed.err


def test_status_tells_a_running_stage_from_one_that_was_killed(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "fetch" / "_journal").mkdir(parents=True)

    def state() -> str:
        capsys.readouterr()
        assert main(["status", "--corpus", "corpus", "--json"]) == 0
        return next(stage["state"] for stage in _json(capsys)["stages"] if stage["stage"] == "fetch")

    with folder_lock(str(corpus / "fetch")):
        owner = (corpus / "fetch" / ".lock-owner").read_bytes()
        assert state() == "running"
    (corpus / "fetch" / ".lock-owner").write_bytes(owner)  # as after a kill
    assert state() == "unfinished"


def test_status_shows_a_replacement_that_is_not_complete(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["scrape", "--corpus", "corpus", "--workers", "1", "-q"]
    assert main(command) == 0

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.engine.stage_run.replace_result", stop)
        assert main([*command, "--overwrite", "--min-score", "5"]) == 130
    capsys.readouterr()
    assert main(["status", "--corpus", "corpus", "--json"]) == 0
    scrape = next(stage for stage in _json(capsys)["stages"] if stage["stage"] == "scrape")
    assert (scrape["state"], scrape["records_out"]) == ("done", 5)
    assert main(["status", "--corpus", "corpus"]) == 0
    message = capsys.readouterr().err
    assert message == f"note: {scrape['replacement']}\n"
    assert message.startswith(
        "note: corpus/scrape/_next: unfinished replacement of the result (min_score was 3, is now 5), started 2"
    )
    assert " tasks complete, " in message
    assert "re-run the `webtext scrape` or `webtext build` command that started it; to discard it, delete" in message
    assert main([*command, "--overwrite", "--min-score", "5"]) == 0
    capsys.readouterr()
    assert main(["status", "--corpus", "corpus"]) == 0
    assert "replacement" not in capsys.readouterr().err


def test_a_changed_option_is_refused_and_overwrite_rebuilds(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--corpus", "corpus", "--workers", "1", "-q"]) == 0
    text = (corpus / "webtext.toml").read_text()
    (corpus / "webtext.toml").write_text(text.replace("shards = 2", "shards = 3"))
    assert main(["build", "--corpus", "corpus", "--workers", "1", "-q"]) == 1
    message = capsys.readouterr().err
    assert "shards was 2, is now 3. Use --overwrite to rebuild all of it (this result stays in use until" in message
    assert "choose another --corpus to keep both" in message, "build has no --output"
    assert main(["scrape", "--corpus", "corpus", "--workers", "1", "-q"]) == 1
    assert "choose another --output to keep both" in capsys.readouterr().err
    assert main(["build", "--corpus", "corpus", "--workers", "1", "-q", "--overwrite"]) == 0
    assert (corpus / "scrape" / "links-00002.parquet").exists()


def test_every_config_is_checked_before_the_first_stage(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (corpus / "webtext.toml").read_text().replace('["scrape"]', '["scrape", "overlap-report"]')
    (corpus / "webtext.toml").write_text(text)
    assert main(["build", "--corpus", "corpus", "-q"]) == 2
    assert '[overlap-report] has no benchmark; add benchmark = { NAME = "PATH" }' in capsys.readouterr().err
    (corpus / "there.txt").write_text("x")
    (corpus / "webtext.toml").write_text(text + '[overlap-report]\nbenchmark = { x = "there.txt" }\n')
    assert main(["build", "--corpus", "corpus", "-q"]) == 2
    assert "overlap-report reads remove-wikipedia, which is neither finished nor among" in capsys.readouterr().err
    every = '["scrape", "fetch", "extract", "dedup", "remove-wikipedia", "overlap-report"]'
    text = (corpus / "webtext.toml").read_text().replace('["scrape", "overlap-report"]', every).replace("there", "gone")
    (corpus / "webtext.toml").write_text(text)
    assert main(["build", "--corpus", "corpus", "-q"]) == 1
    assert (
        "corpus/gone.txt: no such file; it is named in [overlap-report] of corpus/webtext.toml"
        in capsys.readouterr().err
    )
    assert not (corpus / "scrape").exists()


def test_an_api_source_needs_no_dumps(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "webtext.toml").write_text('[build]\nstages = ["scrape"]\n[scrape]\nsource = "praw"\n')
    assert main(["build", "--corpus", "corpus", "-q"]) == 2
    assert "--source praw needs at least one --subreddit" in capsys.readouterr().err


def test_a_flag_overrides_the_toml(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrape", "--corpus", "corpus", "--shards", "1", "--workers", "1", "--json", "-q"]) == 0
    assert _json(capsys)["records_out"] == 5
    assert not (corpus / "scrape" / "links-00001.parquet").exists()


def test_a_tokenizer_of_the_toml_replaces_train_bpe(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": f"d{number}", "url": f"http://a.com/{number}", "text": f"some words of document {number}, and some more"}
        for number in range(40)
    ]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = ["-i", "docs.jsonl", "-q"]
    assert main(["remove-wikipedia", *documents, "-o", "corpus/remove-wikipedia"]) == 0
    assert main(["train-bpe", *documents, "-o", "corpus/other", "--vocab-size", "300"]) == 0
    table = '[build]\nstages = ["tokenize"]\n[tokenize]\ntokenizer = "{}"\n'
    (corpus / "webtext.toml").write_text(table.format("nowhere"))
    assert main(["build", "--corpus", "corpus", "-q"]) == 1
    assert "corpus/nowhere: no such file or folder; it is named by tokenizer in [tokenize]" in capsys.readouterr().err
    (corpus / "webtext.toml").write_text(table.format("other"))
    assert main(["build", "--corpus", "corpus", "-q"]) == 0
    copied = (corpus / "tokenize" / "tokenizer.json").read_bytes()
    assert copied == (corpus / "other" / "tokenizer.json").read_bytes()
    assert main(["tokenize", "--corpus", "corpus", "-q"]) == 0
    (corpus / "webtext.toml").write_text("[tokenize]\ntokenizer = 3\n")
    assert main(["tokenize", "--corpus", "corpus", "-q"]) == 2
    assert "webtext.toml [tokenize]: tokenizer = 3: expected a string" in capsys.readouterr().err
    for table, stage, key in (
        ('tokenizer = ""', "tokenize", "tokenizer"),
        ('input = [""]', "dedup", "input"),
        ("benchmark = {a = false}", "overlap-report", "benchmark"),
    ):
        (corpus / "webtext.toml").write_bytes(b"\xef\xbb\xbf" + f"[{stage}]\n{table}\n".encode())
        assert main(["build", "--corpus", "corpus", "--from", stage, "--to", stage]) == 2
        assert f"webtext.toml [{stage}]: {key} names nothing; write a name, or omit it" in capsys.readouterr().err


def test_benchmarks_of_the_toml_are_a_table_of_paths_and_known_names(tmp_path: Path) -> None:
    text = '[overlap-report.benchmark]\n"mine/test" = "b.txt"\nabsolute = "/data/c.txt"\nlambada = true\n'
    (tmp_path / "webtext.toml").write_text(text)
    config = CorpusConfig(str(tmp_path))
    assert list(config.files("overlap-report")) == [f"mine/test={tmp_path}/b.txt", "absolute=/data/c.txt", "lambada"]
    assert config.files("overlap-report")["lambada"] is None
    for value, problem in {
        '["mine=b.txt"]': r"\[overlap-report\]: benchmark = .*: expected a table",
        '"mine=b.txt"': r"\[overlap-report\]: benchmark = .*: expected a table",
        "{ mine = 3 }": r"\[overlap-report.benchmark\]: mine = 3: expected",
    }.items():
        (tmp_path / "webtext.toml").write_text(f"[overlap-report]\nbenchmark = {value}\n")
        with pytest.raises(UsageError, match=f"webtext.toml {problem}"):
            CorpusConfig(str(tmp_path)).files("overlap-report")
