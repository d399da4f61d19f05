"""The small tracked inputs under `data/`: in the wheel they lie inside the package, in a checkout beside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def data_path(name: str) -> str:
    """Return the path of a file or folder of `data/`."""
    installed = _PACKAGE / "_data"
    return str((installed if installed.is_dir() else _PACKAGE.parent / "data") / name)
