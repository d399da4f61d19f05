"""What this machine has: the memory that is still to be had."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MEMORY, _CGROUP = "/proc/meminfo", "/sys/fs/cgroup"


def available_memory_bytes() -> int | None:
    """Return the memory that this process and its workers may still take, None where nothing tells.

    The smaller of what the system has and what a container is allowed.
    """
    known = [each for each in (_system_bytes(_MEMORY), _allowed_bytes(_CGROUP)) if each is not None]
    return min(known) if known else _installed_bytes()


def _system_bytes(path: str) -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(path), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _allowed_bytes(folder: str) -> int | None:
    """Return what a container's limit leaves; what it keeps of files can be given back, so it does not count."""
    limit, used = (_read(f"{folder}/memory.{name}").strip() for name in ("max", "current"))
    if not limit.isdecimal() or not used.isdecimal():
        return None
    cached = re.search(r"^file (\d+)", _read(f"{folder}/memory.stat"), re.MULTILINE)
    return int(limit) - int(used) + (int(cached[1]) if cached else 0)


def _installed_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
