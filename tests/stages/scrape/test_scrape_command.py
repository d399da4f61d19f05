"""`webtext scrape` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from webtext_cli.main import main


def _line(id: str, score: int = 5) -> str:
    record = {
        "id": id,
        "url": f"http://example.com/{id}",
        "score": score,
        "created_utc": "1420070400",
        "is_self": False,
    }
    return json.dumps(record) + "\n"


def test_dumps_come_from_arguments_or_from_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "dumps").mkdir(parents=True)
    (corpus / "dumps" / "RS_2015-01").write_text(_line("a") + _line("b", 1))
    (tmp_path / "RS_2015-02.json").write_text(_line("c"))
    monkeypatch.chdir(tmp_path)
    assert main(["scrape", "--corpus", "corpus"]) == 2
    assert "error: no dumps were named; give files, folders or globs as arguments" in capsys.readouterr().err
    assert main(["scrape", "--corpus", "corpus", "--source", "urls"]) == 2
    assert "error: no lists of URLs were named" in capsys.readouterr().err
    (corpus / "webtext.toml").write_text('[scrape]\ndumps = ["dumps"]\nshards = 2\n')
    assert main(["scrape", "--corpus", "corpus", "--workers", "1", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["records_in"], summary["records_out"], summary["dropped"]) == (2, 1, {"low_score": 1})
    assert summary["output"] == "corpus/scrape"
    assert (corpus / "index.html").exists()
    named = ["RS_2015-02.json", "-i", "corpus/dumps", "-o", "out", "--min-score", "1", "--json", "--workers", "1"]
    assert main(["scrape", "--corpus", "corpus", *named]) == 0
    assert json.loads(capsys.readouterr().out)["records_out"] == 3


def test_standard_input_of_a_real_pipe(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "webtext_cli",
        "scrape",
        "-",
        "-o",
        str(tmp_path / "out"),
        "--shards",
        "1",
        "--json",
    ]
    for _ in range(2):
        run = subprocess.run(command, input=_line("a").encode(), capture_output=True, check=True)
        assert json.loads(run.stdout)["records_out"] == 1


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--source", "tape"], "--source tape: is not one of dump, urls, praw"),
        (["--profile", "mine"], "--profile mine: is not one of none, openwebtext, openwebtext2, webtext-2019"),
        (["--source", "praw", "--limit", "2000"], "--limit 2000: must be at least 1 and at most 1,000"),
        (["--source", "praw"], "--source praw needs at least one --subreddit"),
        (["x.zst", "--after", "yesterday"], "--after yesterday: is not a day written YYYY-MM-DD"),
    ):
        assert main(["scrape", *arguments, "-o", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
    assert main(["scrape", str(tmp_path / "no.zst"), "-o", str(tmp_path / "out")]) == 1
    assert "no.zst: no such file or folder" in capsys.readouterr().err


def test_the_help_states_the_limit_of_listings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scrape", "--help"]) == 0
    assert "at most 1,000 items" in " ".join(capsys.readouterr().out.split())
