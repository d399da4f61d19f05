"""`webtext status` of a run in progress, the log of runs, tab completion and `--version`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.manifest import Identity
from pipelines.engine.run import RunOptions
from pipelines.engine.run_record import RecordedProgress, read_progress
from pipelines.errors import WebtextError
from pipelines.progress import Silent
from pipelines.records.input_paths import expand_paths
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import remove_wikipedia
from pipelines.stages.scrape.sources import find_files
from webtext_cli.main import main

_IDENTITY = Identity("dedup", 1, {"threshold": 0.8}, {})


def _dedup(corpus: Path, output: Path | None = None, texts: tuple[str, ...] = ("one text", "another text")) -> None:
    corpus.mkdir(exist_ok=True)
    rows = [{"id": str(number), "url": f"http://a.org/{number}", "text": text} for number, text in enumerate(texts)]
    (corpus / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dedup(
        DedupConfig(),
        documents=str(corpus / "texts.jsonl"),
        output=str(output or corpus / "dedup"),
        options=RunOptions(),
    )


def test_status_shows_the_progress_of_a_running_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "dedup"
    progress = RecordedProgress(Silent(), str(folder), _IDENTITY)
    with folder_lock(str(folder)):
        progress.start("dedup: signatures", 1000, "records")
        progress._interval = 0.0
        progress.advance(150)
        progress.advance(100)
        assert main(["status", "--corpus", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "dedup: signatures: 250 of 1,000 records" in shown
        assert f"(process {os.getpid()} on " in shown
        assert main(["status", "--corpus", str(tmp_path), "--json"]) == 0
        [stage] = [stage for stage in json.loads(capsys.readouterr().out)["stages"] if stage["stage"] == "dedup"]
        assert (stage["progress"]["done"], stage["progress"]["total"]) == (250, 1000)
        live = read_progress(str(folder))
        assert live is not None
        assert live.seconds_left is None or live.seconds_left >= 0
    # The process has ended without removing the file, as a kill does: it is not running.
    assert main(["status", "--corpus", str(tmp_path)]) == 0
    assert "signatures" not in capsys.readouterr().out


def test_the_time_left_of_a_running_stage_does_not_include_compilation(tmp_path: Path, clock: list[float]) -> None:
    progress = RecordedProgress(Silent(), str(tmp_path / "dedup"), _IDENTITY)
    progress.start("dedup: signatures", 1000, "records")
    progress.pause()
    clock[0] += 40
    progress.advance(100)
    clock[0] += 10
    progress.advance(100)
    live = read_progress(str(tmp_path / "dedup"))
    assert live is not None
    assert (live.done, live.seconds, live.seconds_left) == (200, 10, 40)


def test_every_run_in_a_corpus_is_logged(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    _dedup(corpus, texts=("one text", "one text", "another text"))
    _dedup(corpus, texts=("one text", "one text", "another text"))  # already complete: nothing was run
    _dedup(corpus, output=tmp_path / "unique")  # not in a corpus
    with pytest.raises(WebtextError, match="all 2 records were dropped"):
        remove_wikipedia(
            RemoveWikipediaConfig(extra_domain=("a.org",)),
            documents=str(corpus / "dedup"),
            output=str(corpus / "remove-wikipedia"),
            options=RunOptions(),
        )
    assert not (tmp_path / "runs.log").exists()
    done, failed = (json.loads(line) for line in (corpus / "runs.log").read_text().splitlines())
    assert (done["stage"], done["outcome"], done["error"]) == ("dedup", "done", None)
    assert (done["records_in"], done["records_out"], done["dropped"]) == (3, 2, {"exact_duplicate": 1})
    assert done["config"]["threshold"] == 0.8
    assert done["seconds"] >= 0
    assert done["peak_memory_bytes"] > 10 << 20
    assert done["command"] == sys.argv
    assert (failed["stage"], failed["outcome"]) == ("remove-wikipedia", "failed")
    assert "all 2 records were dropped" in failed["error"]
    assert not list(corpus.rglob(".progress.json"))


def test_the_next_run_records_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "dedup").mkdir()
    progress = RecordedProgress(Silent(), str(tmp_path / "dedup"), _IDENTITY)
    progress.start("dedup: signatures", 1000, "records")
    progress._interval = 0.0
    progress.advance(250)
    _dedup(tmp_path)
    killed, done = (json.loads(line) for line in (tmp_path / "runs.log").read_text().splitlines())
    assert (killed["stage"], killed["outcome"]) == ("dedup", "killed")
    assert killed["error"] == "killed during dedup: signatures (250 records done)"
    assert (killed["config"], killed["command"]) == ({"threshold": 0.8}, sys.argv)
    assert killed["started"] <= done["started"]
    assert done["outcome"] == "done"


def test_the_log_of_runs_is_no_input(tmp_path: Path) -> None:
    _dedup(tmp_path)
    assert (tmp_path / "runs.log").exists()
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("texts.jsonl", "runs.log"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    assert expand_paths([str(tmp_path / "*.jsonl"), str(folder)], [".jsonl"]) == [
        str(tmp_path / "texts.jsonl"),
        str(folder / "texts.jsonl"),
    ]
    assert [file.path for file in find_files([str(folder)], "dumps")] == [str(folder / "texts.jsonl")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    word = "ded" if shell == "fish" else "1"  # fish gives the word itself, not its number
    complete = {"_WEBTEXT_COMPLETE": f"{shell}_complete", "COMP_WORDS": "webtext ded", "COMP_CWORD": word}
    environment = {**os.environ, **complete}
    command = [sys.executable, "-m", "webtext_cli"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "dedup" in result.stdout


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"webtext, version {importlib.metadata.version('webtext-kit')}\n"
