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
    with contextlib.suppress(OSError):  # it may have ended
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0
