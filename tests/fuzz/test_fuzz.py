"""Runs the fuzz driver: on the kept inputs always, on new ones for a minute with the slow tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_DRIVER = Path(__file__).parent / "fuzz.py"


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, _DRIVER, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)


def test_valid_inputs_are_accepted_and_inputs_that_once_failed_pass() -> None:
    result = _run("--seconds", 0)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_mutated_inputs_pass() -> None:
    # The seed is fixed, so that a failure is that of a change; `make fuzz` takes a new one each time.
    result = _run("--seconds", 60, "--seed", 1)
    assert result.returncode == 0, result.stdout + result.stderr


def test_failures_are_found_and_can_be_replayed(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(_FAILING.format(folder=str(_DRIVER.parent), failures=str(tmp_path / "failures")))
    command = [sys.executable, str(script), "--seconds", "0", "--only", *_CAUSES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    for target, cause in _CAUSES.items():
        assert f"FAILED {target}, input 0: {cause}" in result.stdout
        assert [path.read_bytes() for path in (tmp_path / "failures" / target).iterdir()] == [b"valid"]
    [path] = (tmp_path / "failures" / "raises").iterdir()
    replayed = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, text=True, timeout=60)
    assert replayed.returncode == 1
    assert "KeyError: 'bug'" in replayed.stdout


_CAUSES = {
    "raises": "KeyError",
    "dies": "SIGSEGV",
    "hangs": "timeout",
    "grows": "UnacceptableError",
    "prints": "UnacceptableError",
    "quotes": "UnacceptableError",
    "refuses": "UnacceptableError",
}
_FAILING = """
import ctypes, pathlib, sys, time
sys.path.insert(0, {folder!r})
import fuzz, fuzz_targets
from pipelines.errors import InputError

def raises(data, folder):
    raise KeyError("bug")

def dies(data, folder):
    ctypes.string_at(0)

def hangs(data, folder):
    time.sleep(60)

def grows(data, folder):
    assert len(b"x" * 300_000_000)

def prints(data, folder):
    print("x" * 10_000)

class UnboundedError(InputError):
    __str__ = Exception.__str__

def quotes(data, folder):
    raise UnboundedError("a" * 10_000)

def refuses(data, folder):
    raise InputError("no")

fuzz.FAILURES = pathlib.Path({failures!r})
fuzz.MAX_SECONDS, fuzz._MEMORY_BYTES = 4.0, 1 << 28
for function in (raises, dies, hangs, grows, prints, quotes, refuses):
    fuzz_targets.add(function.__name__, function, lambda: [b"valid"])
sys.exit(fuzz.main())
"""
