"""A build that is killed ends like an undisturbed one: the short version of `kill_build.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).with_name("kill_build.py")


def _run(*options: str) -> str:
    command = [sys.executable, str(_SCRIPT), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_killed_build_ends_with_the_same_bytes() -> None:
    assert "differing stages: none" in _run("--kills", "1", "--seed", "5", "--to", "extract")


@pytest.mark.slow
def test_a_build_killed_twenty_times_ends_with_the_same_bytes() -> None:
    assert "differing stages: none" in _run("--kills", "20", "--seed", "0")
