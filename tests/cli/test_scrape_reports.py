"""`webtext scrape --explain` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from webtext_cli.main import main

_PAGE = "http://example.com/a"
_SEPTEMBER_S = 1693526400


def _write(path: Path, records: list[dict[str, Any]]) -> str:
    fields = {"created_utc": 1420070400, "subreddit": "python", "is_self": False}
    path.write_text("".join(json.dumps(fields | each) + "\n" for each in records))
    return str(path)


def _output(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 0) -> str:
    assert main(["scrape", *arguments, "--quiet", "--workers", "1"]) == code
    return capsys.readouterr().out


def test_explain_prints_the_submissions_and_the_verdict_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"id": f"a{n:02d}", "url": _PAGE, "score": n % 5, "created_utc": 1420070400 + n} for n in range(60)]
    records[4]["subreddit"] = "py\x1b[31mthon"
    dump = _write(tmp_path / "RS_2015-01", records)
    out = str(tmp_path / "out")
    assert main(["scrape", dump, "-o", out, "--shards", "4", "--quiet", "--workers", "1"]) == 0
    capsys.readouterr()
    lines = _output(capsys, ["--explain", "HTTP://Example.com/a#x", dump, "-o", out]).splitlines()
    assert lines[:3] == [
        "url     http://example.com/a",
        "domain  example.com, in links-00057.parquet",
        "rule    no rule drops this URL itself",
    ]
    table = [line.split() for line in lines if line.startswith(" RS_2015-01")]
    assert len(table) == 50
    assert table[0] == ["RS_2015-01", "4", "a03", "python", "2015-01-01", "3", "kept"]
    assert table[1][-4:] == ["py\x1b[31mthon", "2015-01-01", "4", "merged_into_link"]
    assert table[-1][-2:] == ["1", "low_score"]
    assert lines[-3:] == [
        "and 10 more; all together: kept 1, merged_into_link 23, low_score 36",
        f"{out} contains it in links-00001.parquet, with score 4 of 24 submissions; that result was built differently: "
        "shards was 4, is now 64",
        "kept: link with score 4 (max of 24 submissions)",
    ]


def test_explain_names_urls_that_are_nearly_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _write(tmp_path / "RS_2015-01", [{"id": f"a{n}", "url": _PAGE, "score": 5} for n in range(4)])
    arguments = [dump, "-o", str(tmp_path / "out"), "--explain", "https://www.example.com/a/"]
    lines = _output(capsys, arguments).splitlines()
    assert "domain  example.com" in lines  # in no shard, since nobody submitted it
    assert lines[-2:] == [
        "near    http://example.com/a has 4 submissions",
        "not found in 4 lines of 1 file",
    ]
    assert json.loads(_output(capsys, [*arguments, "--json"]))["near"] == {_PAGE: 4}


def test_a_long_file_name_is_shortened_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "submissions-of-2015-01.ndjson"
    dump = _write(tmp_path / name, [{"id": "a1", "url": _PAGE, "score": n} for n in (4, 5)])
    arguments = [dump, "-o", str(tmp_path / "out"), "--explain", _PAGE]
    piped = [line for line in _output(capsys, arguments).splitlines() if line.startswith(" ")]
    assert piped[-1].split()[0] == name
    assert len({len(line) for line in piped}) == 1
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(len(piped[0]) - 7))
    rows = [line for line in _output(capsys, arguments).splitlines() if "2015-01-01" in line]
    assert [row.split()[0] for row in rows] == ["submission…-01.ndjson"] * 2
    assert [row.split()[-1] for row in rows] == ["kept", "duplicate_submission"]


def test_explain_as_json_and_from_the_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "RS_2015-01", [{"id": "a", "url": _PAGE, "score": 2}])
    (tmp_path / "webtext.toml").write_text('[scrape]\ndumps = ["RS_2015-01"]\nshards = 2\n')
    before = sorted(path.name for path in tmp_path.iterdir())
    found = json.loads(_output(capsys, ["--explain", _PAGE, "--corpus", str(tmp_path), "--json"]))
    assert (found["is_kept"], found["lines"]) == (False, 1)
    assert found["verdict"] == "dropped: low_score"
    assert found["submissions"] == [
        {
            "file": "RS_2015-01",
            "line": 1,
            "id": "a",
            "subreddit": "python",
            "created_utc": 1420070400,
            "score": 2,
            "outcome": "low_score",
        }
    ]
    assert found["result"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_explain_of_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "urls.txt").write_text(f"{_PAGE}\nhttp://b.com/\n{_PAGE}\n")
    arguments = [str(tmp_path / "urls.txt"), "--source", "urls", "--explain", _PAGE, "-o", str(tmp_path / "out")]
    lines = _output(capsys, arguments).splitlines()
    assert [line.split() for line in lines if "urls.txt" in line] == [
        ["urls.txt", "1", "kept"],
        ["urls.txt", "3", "merged_into_link"],
    ]
    assert lines[-1] == "kept: link without a score, listed 2 times"


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--explain", "example.com", "x"], "--explain example.com: not an http(s) URL"),
        (["--explain", _PAGE, "--source", "praw"], "--explain reads files, and --source praw queries an API"),
    ):
        assert main(["scrape", *arguments, "-o", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line", "hint"),
    [
        ("page.html", "<p>Hello</p>", "(a web page needs `webtext extract`); replace it and re-run"),
        ("docs.jsonl", '{"text": "Hello"}', "(texts need no links: use `webtext dedup`); replace it and re-run"),
        ("urls.txt", "http://a.org/b", "(a list of URLs needs --source urls); replace it and re-run"),
    ],
)
def test_a_file_of_another_kind_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, line: str, hint: str
) -> None:
    (tmp_path / name).write_text(f"{line}\n" * 3)
    assert main(["scrape", str(tmp_path / name), "-o", str(tmp_path / "out"), "--workers", "1"]) == 1
    assert capsys.readouterr().err.endswith(f"{hint}\n")


def test_months_that_the_profile_drops_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _write(tmp_path / "RS_2018-03", [{"id": "a", "url": _PAGE, "score": 5, "created_utc": 1520000000}])
    message = "--profile webtext-2019 drops all submissions from 2018-01 on (after_2017); choose another --profile"
    explained = _output(capsys, ["--explain", _PAGE, dump])
    assert f"note: {message}" in explained
    assert "no rule drops this URL itself" in explained
    assert main(["scrape", dump, "-o", str(tmp_path / "out"), "--workers", "1"]) == 1
    assert f"note: {message}" in capsys.readouterr().err
    assert message not in _output(capsys, ["--explain", _PAGE, dump, "--profile", "none"])
