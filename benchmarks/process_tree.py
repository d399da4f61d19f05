"""What a process and all below it hold in memory, as Linux tells it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def tree(root: int) -> set[int]:
    """Return a process and all below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def proportional_set_mb(process: int) -> float:
    return _size_mb(process, "smaps_rollup", "Pss:")


def peak_mb(process: int) -> float:
    """Return the largest resident memory of a process so far."""
    return _size_mb(process, "status", "VmHWM:")


def _size_mb(process: int, file: str, field: str) -> float:
    with contextlib.suppress(OSError):  # it may have ended
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0
