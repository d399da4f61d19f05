"""Paths of the data files in `data/`, which are inside the package in a wheel, and next to it in a checkout."""

from __future__ import annotations

import functools
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


@functools.cache
def data_path(name: str) -> str:
    """Return the path of a file or folder of `data/`."""
    return str(_folder() / name)


def data_names(folder: str) -> tuple[str, ...]:
    """Return the names, without `.toml`, of the files in a folder of `data/`, in alphabetical order."""
    return tuple(sorted(path.stem for path in (_folder() / folder).glob("*.toml")))


@functools.cache
def _folder() -> Path:
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent / "data"
