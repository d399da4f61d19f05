"""Lets tests import the scripts of `benchmarks/`, which are no package."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def load_script(name: str) -> ModuleType:
    """Return a module of `benchmarks/`."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)


def run_script(name: str, *arguments: str) -> str:
    """Run a script of `benchmarks/` as its users do, on one thread; return what it printed."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
