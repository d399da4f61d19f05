"""The repository contains sources, docs with pictures and small data, no built packages."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

_REPOSITORY = Path(__file__).resolve().parent.parent
_TYPES = {".css", ".html", ".js", ".json", ".md", ".npz", ".png", ".py", ".pyi", ".sql", ".toml", ".txt", ".yml"}
_NAMES = {".gitignore", "Dockerfile", "LICENSE", "Makefile", "py.typed", "run"}
_MAX_BYTES = 2 << 20


def test_every_tracked_file_has_a_known_type_and_is_small() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=_REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a checkout of git")
    names = [name for name in done.stdout.split("\0") if name and (_REPOSITORY / name).exists()]
    assert len(names) > 100
    unknown = [
        name
        for name in names
        if not name.startswith("tests/fuzz/seeds/")
        and PurePosixPath(name).suffix not in _TYPES
        and PurePosixPath(name).name not in _NAMES
    ]
    assert unknown == []
    assert [name for name in names if (_REPOSITORY / name).stat().st_size > _MAX_BYTES] == []
