"""`webtext demo` as a new user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.demo.web import demo_routes
from pipelines.pipeline import PIPELINE
from webtext_cli.main import main


def _demo(corpus: Path) -> tuple[str, str]:
    command = [sys.executable, "-m", "webtext_cli", "demo", "--corpus", str(corpus)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


@pytest.mark.slow
def test_the_demo_runs_the_whole_pipeline_and_a_second_run_only_verifies(tmp_path: Path) -> None:
    printed, _ = _demo(tmp_path / "demo")
    assert "A sample of the model's text" in printed
    assert len(re.findall(r"^[a-z-]+ +[\d,]+ in +[\d,]+ out", printed, flags=re.MULTILINE)) == len(PIPELINE)
    for path in [
        line.split()[0] for line in printed.split("Results:")[1].split("Next:")[0].splitlines() if line.strip()
    ]:
        assert Path(path).is_file(), path
    index = (tmp_path / "demo" / "index.html").read_text()
    links = re.findall(r'href="([^"]+)"', index)
    assert len(links) == 8
    assert all((tmp_path / "demo" / link).is_file() for link in links)
    report = json.loads((tmp_path / "demo" / "overlap-report" / "report.json").read_text())
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("manifest.json")}
    assert len(files) == len(PIPELINE) + 1  # the task of the evaluation
    results = json.loads((tmp_path / "demo" / "evaluate" / "results.json").read_text())["tasks"]
    figures = {figure["name"]: figure["value"] for task in results.values() for figure in task["metrics"]}
    assert figures["bits_per_byte"] < 4
    reference, builtins = report["benchmarks"]
    # About half of the reference's topics were among the pages.
    assert 25 < reference["percent_positions"] < 75
    assert builtins["overlapping"] > 0
    again, _ = _demo(tmp_path / "demo")
    assert "A sample of the model's text" in again
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_without_torch_the_demo_runs_all_but_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = dict(list(demo_routes().items())[::9])
    for module in ("corpus", "web"):
        monkeypatch.setattr(f"pipelines.demo.{module}.demo_routes", lambda: routes)
    monkeypatch.setattr("pipelines.demo.corpus.VOCABULARY_SIZE", 512)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["demo", "--corpus", str(tmp_path / "demo"), "--workers", "1", "--quiet"]) == 0
    printed = capsys.readouterr().out
    ran = re.findall(r"^([a-z-]+) +[\d,]+ in +[\d,]+ out", printed, flags=re.MULTILINE)
    assert ran == [stage.name for stage in PIPELINE if stage.name != "pretrain"]
    results, following = printed.split("Results:")[1].split("Next:")
    assert all(Path(line.split()[0]).is_file() for line in results.splitlines() if line.strip())
    assert "the training curves" not in results
    assert "need torch: to add them, re-run the demo after\n  pip install 'webtext-kit[train]'\n" in following
    assert following.endswith("\n  pip install torch --index-url https://download.pytorch.org/whl/cpu\n")
    assert max(map(len, printed.replace(str(tmp_path), "").splitlines())) <= 80
    assert "webtext generate" not in following
    assert f" browse --corpus {tmp_path / 'demo'}\n" in following
