"""What this machine has and gives: memory still to be had, time and memory that were taken, threads of a worker."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OWN_PAGES = "/proc/self/statm"
_MEMORY, _CGROUP = "/proc/meminfo", "/sys/fs/cgroup"
# In the control groups of version 2 and of version 1: the limit, what is used, and what of it is kept of files.
_LIMITS = (
    ("memory.max", "memory.current", "file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_cache"),
)
# What mallopt calls them, and what they are set to.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES, _TAKEN_BYTES, _MAPPED_FROM_BYTES = 256 << 20, 64 << 20, 32 << 20
# Version 1 has no word for "none", but a number near 2**63.
_NO_LIMIT_BYTES = 1 << 60


def available_memory_bytes() -> int | None:
    """Return the memory that this process and its workers may still take, None where nothing tells.

    The smaller of what the system has and what a container is allowed.
    """
    known = [each for each in (_system_bytes(_MEMORY), _allowed_bytes(_CGROUP)) if each is not None]
    return min(known) if known else _installed_bytes()


def resident_bytes() -> int | None:
    """Return the memory that this process has at the moment, None where nothing tells."""
    pages = _read(_OWN_PAGES).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else None


class Spent:
    """The seconds that the parts of a piece of work took, and the most memory that it had."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count the time of the block for a part."""
        began = time.monotonic()
        yield
        self.seconds[part] = round(self.seconds.get(part, 0.0) + time.monotonic() - began, 3)

    def figures(self) -> dict[str, Any]:
        """Return `seconds` by part, and the most memory of this process and of one of its workers where known."""
        return {"seconds": self.seconds, **_peak_bytes()}


def use_one_thread_in_a_worker() -> None:
    """Keep native libraries from starting a thread a core in each of several worker processes.

    Call it before they are first used.
    """
    if multiprocessing.parent_process() is not None:
        os.environ["RAYON_NUM_THREADS"] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def keep_freed_memory() -> None:
    """Let this process keep what it frees for what it needs next, up to some 256 MB, instead of giving it back.

    For tasks that make arrays of many MB one after the other: memory that is new to a process costs several times what
    is done in it. Arrow takes its memory from the C library then. Without effect where that is not the GNU one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    import pyarrow as pa

    mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_TOP_PAD, _TAKEN_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())


def give_back_freed_memory() -> None:
    """Give the system all that this process has freed, also what `keep_freed_memory` keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _peak_bytes() -> dict[str, int]:
    if sys.platform == "win32":
        return {}
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    ours, theirs = (
        resource.getrusage(who).ru_maxrss * unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"peak_bytes": ours} | ({"worker_peak_bytes": theirs} if theirs else {})


def _system_bytes(path: str) -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(path), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _allowed_bytes(folder: str) -> int | None:
    """Return what a container's limit leaves; what it keeps of files can be given back, so it does not count."""
    for limit_file, used_file, cache in _LIMITS:
        limit, used = (_read(f"{folder}/{name}").strip() for name in (limit_file, used_file))
        if limit.isdecimal() and used.isdecimal() and int(limit) < _NO_LIMIT_BYTES:
            stat = limit_file.rpartition("/")[0]
            cached = re.search(rf"^{cache} (\d+)", _read(f"{folder}/{stat}/memory.stat"), re.MULTILINE)
            return int(limit) - int(used) + (int(cached[1]) if cached else 0)
    return None


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
