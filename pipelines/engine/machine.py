"""Memory and time of this machine and process, and settings of native libraries in workers."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.errors import InputError
from pipelines.format import format_bytes

_OWN_PAGES = "/proc/self/statm"
_MEMORY, _CGROUP = "/proc/meminfo", "/sys/fs/cgroup"
# Control groups version 2 and version 1: the limit, the memory in use, and the file cache in it.
_LIMITS = (
    ("memory.max", "memory.current", "file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_cache"),
)
# The parameters of mallopt, and their values here.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_TRIM_BYTES, _PAD_BYTES, _MMAP_BYTES = 256 << 20, 64 << 20, 32 << 20
# Version 1 expresses "no limit" as a number near 2**63.
_NO_LIMIT_BYTES = 1 << 60


def available_memory_bytes() -> int | None:
    """Return the memory available to this process and its workers, None if it is unknown.

    The minimum of the available memory of the system and the memory left under the limit of a container.
    """
    system = re.search(r"^MemAvailable:\s+(\d+) kB", _read(_MEMORY), re.MULTILINE)
    sizes = (int(system[1]) * 1024 if system else None, _container_bytes(_CGROUP))
    known = [size for size in sizes if size is not None]
    return min(known) if known else _installed_bytes()


def check_memory(task: str, needed_bytes: int, available_bytes: int | None, advice: str) -> None:
    """Raise InputError if a task needs more memory than is available, None if that is unknown."""
    if available_bytes is not None and needed_bytes > available_bytes:
        raise InputError(
            f"{task} needs about {format_bytes(needed_bytes)} of memory, but {format_bytes(available_bytes)} is "
            f"available; {advice}"
        )


def resident_bytes() -> int | None:
    """Return the resident memory of this process, None if it is unknown."""
    pages = _read(_OWN_PAGES).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else None


class Timer:
    """Measures the seconds of each section of a piece of work, and its peak memory."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Add the time of the block to a section."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 3)

    def figures(self) -> dict[str, Any]:
        """Return `seconds` by section, and the peak memory of this process and of its largest worker where known."""
        return {"seconds": self.seconds, **peak_bytes()}


def limit_worker_threads() -> None:
    """Limit native libraries to one thread in a worker process; call it before their first use."""
    if multiprocessing.parent_process() is not None:
        os.environ["RAYON_NUM_THREADS"] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def raise_file_limit(files: int) -> int:
    """Let this process open so many files if the system allows it; return the limit that was asked for, or allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def retain_freed_memory() -> None:
    """Keep up to 256 MB of freed memory in this process for reuse instead of returning it to the system.

    For tasks that allocate arrays of many MB one after the other: page faults of fresh memory cost several times the
    work done in it. Arrow then allocates from the C library. Has no effect except with the GNU C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    import pyarrow as pa

    mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
    mallopt(_TOP_PAD, _PAD_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())


def release_freed_memory() -> None:
    """Return freed memory to the system, including what `retain_freed_memory` keeps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def peak_bytes() -> dict[str, int]:
    """Return `peak_bytes` of this process and `worker_peak_bytes` of its largest worker, where they are known."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak, worker_peak = (
        resource.getrusage(scope).ru_maxrss * unit for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    # Linux counts in `ru_maxrss` what the parent had in memory when it started this process.
    if own := re.search(r"^VmHWM:\s+(\d+) kB", _read("/proc/self/status"), re.MULTILINE):
        peak = int(own[1]) * 1024
    return {"peak_bytes": peak} | ({"worker_peak_bytes": worker_peak} if worker_peak else {})


def _container_bytes(folder: str) -> int | None:
    """Return the memory left under the limit of a container; file cache does not count, since it can be reclaimed."""
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
