"""`webtext demo` from the first command to the last line, as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def _demo(corpus: Path) -> tuple[str, str]:
    command = [sys.executable, "-m", "webtext_cli", "demo", "--corpus", str(corpus)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


@pytest.mark.slow
def test_the_demo_runs_the_whole_line_and_a_second_time_at_once(tmp_path: Path) -> None:
    printed, _ = _demo(tmp_path / "demo")
    assert "A sample of the model's text" in printed
    assert "The line, from a submission to a model" in printed
    for path in [
        line.split()[0] for line in printed.split("Look at:")[1].split("Next:")[0].splitlines() if line.strip()
    ]:
        assert Path(path).is_file(), path
    report = json.loads((tmp_path / "demo" / "overlap-report" / "report.json").read_text())
    reference, builtins = report["benchmarks"]
    # About half of the reference's topics were among the pages.
    assert 25 < reference["percent_positions"] < 75
    assert builtins["overlapping"] > 0
    again, progress = _demo(tmp_path / "demo")
    assert "A sample of the model's text" in again
    assert "..." not in progress  # no stage began any work
