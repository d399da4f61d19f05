"""`webtext rehydrate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_web import LocalWeb
from release_folder import make_corpus, rows_of, small_web, write_release

from webtext_cli.main import main


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rehydrate")
    return write_release(folder / "release", make_corpus(folder / "corpus"))


def test_it_prints_every_stage_and_the_corpus_can_be_queried(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    command = [
        "rehydrate",
        str(release),
        "-o",
        str(new),
        "--allow-private-addresses",
        "--per-host-delay",
        "0",
        "--workers",
        "1",
    ]
    with LocalWeb(small_web()) as web, web.as_proxy():
        assert main([*command, "--quiet"]) == 0
        printed = capsys.readouterr().out
        assert [line.split(":")[0] for line in printed.splitlines() if ": done in " in line] == [
            "scrape", "fetch", "extract", "rehydrate",
        ]  # fmt: skip
        assert "  exact: 12\n  near: 0\n" in printed
        assert main([*command, "--quiet", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [stage["stage"] for stage in stages] == ["scrape", "fetch", "extract", "rehydrate"]
    assert stages[-1]["exact"] == 12
    assert (new / "index.html").exists()
    assert main(["stats", "-i", str(new / "rehydrate"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["documents"] == 12
    query = f"SELECT verdict, count(*) AS n FROM '{new}/rehydrate/verdicts-*.parquet' GROUP BY ALL"
    assert main(["sql", query, "--corpus", str(new), "--allow-files", "--format", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["verdict,n", "exact,12"]
    assert main(["status", "--corpus", str(new), "--verify"]) == 0
    assert "  rehydrate           done " in capsys.readouterr().out
    assert 'href="rehydrate/report.html"' in (new / "index.html").read_text(encoding="utf-8")
    assert main(["explain", rows_of(new / "rehydrate", "documents")[0]["id"], "--corpus", str(new)]) == 0
    assert "sketch" not in capsys.readouterr().out
    assert main(["release", "--corpus", str(new), "-o", str(tmp_path / "again"), "--license", "CC0-1.0"]) == 1
    assert capsys.readouterr().err == f"error: {new}/rehydrate: was rebuilt from a release; publish that one\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "missing --output"),
        (["-o", "{release}"], 2, "{release}: is both the input and the output; choose another --output"),
        (["-o", "{new}", "--source", "archives"], 2, "--source archives: needs --archive"),
        (["-o", "{new}", "--archive", "commoncrawl"], 2, "--archive commoncrawl: needs --cc-index"),
        (["-o", "{new}", "--source", "warc"], 2, "--source warc: needs --pages, WARC or ARC files"),
        (["-o", "{new}", "--source", "warc", "--pages", "{new}.warc"], 1, "{new}.warc: no such file"),
        (["-o", "{photos}"], 1, "{photos}: is not empty (a.jpg, ...) and was not written by webtext; choose another"),
    ],
)
def test_wrong_usage(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    names = {"release": str(release), "new": str(tmp_path / "new"), "photos": str(tmp_path / "photos")}
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    assert main(["rehydrate", str(release), *(argument.format(**names) for argument in arguments), "-q"]) == code
    assert f"error: {message.format(**names)}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "a.jpg"]


@pytest.mark.parametrize("name", ["nothing", "corpus"])
def test_a_folder_that_is_no_release(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = release.parent / name
    assert main(["rehydrate", str(folder), "-o", str(tmp_path / "new")]) == 1
    message = f"error: {folder}: has no release.json; name a folder that `webtext release` wrote\n"
    assert capsys.readouterr().err == message
    assert not (tmp_path / "new").exists()
