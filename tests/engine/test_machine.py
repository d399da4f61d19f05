"""What the machine has: the smaller of the system's memory and of what a container leaves, in either form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.engine import machine

_GB = 10**9


def _set(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], available_kb: int | None) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")
    (folder / "meminfo").write_text(
        "MemTotal: 9 kB\n" + (f"MemAvailable:   {available_kb} kB\n" if available_kb else "")
    )
    monkeypatch.setattr(machine, "_MEMORY", str(folder / "meminfo"))
    monkeypatch.setattr(machine, "_CGROUP", str(folder))


def _second(limit: str) -> dict[str, str]:
    return {"memory.max": limit, "memory.current": str(3 * _GB), "memory.stat": f"anon 7\nfile {_GB}\nfile_mapped 5"}


def _first(limit: str) -> dict[str, str]:
    return {
        "memory/memory.limit_in_bytes": limit,
        "memory/memory.usage_in_bytes": str(3 * _GB),
        "memory/memory.stat": f"cache 5\ntotal_cache {_GB}\ntotal_rss 9",
    }


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * _GB),
        (_second(str(5 * _GB)), 3 * _GB),
        (_second("max"), 8 * _GB),
        (_second(str(50 * _GB)), 8 * _GB),
        (_first(str(5 * _GB)), 3 * _GB),
        (_first("9223372036854771712"), 8 * _GB),
        ({"memory/memory.limit_in_bytes": str(5 * _GB)}, 8 * _GB),
    ],
)
def test_available_memory_is_the_smaller_of_system_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], available: int
) -> None:
    _set(tmp_path, monkeypatch, files, 8 * _GB // 1024 + 1)
    assert machine.available_memory_bytes() == pytest.approx(available, rel=1e-6)


def test_without_either_it_is_the_installed_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set(tmp_path, monkeypatch, {}, None)
    assert machine.available_memory_bytes() == machine._installed_bytes()


def test_freed_memory_is_retained_and_reused_by_arrow() -> None:
    program = """
from pipelines.engine import machine
machine.retain_freed_memory()
import numpy as np, pyarrow as pa, resource
pages = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    np.ones(2_000_000), pa.array(np.ones(1000)).take(pa.array(np.zeros(1_000_000, np.int64)))
before = pages()
for _ in range(10):
    np.ones(2_000_000), pa.array(np.ones(1000)).take(pa.array(np.zeros(1_000_000, np.int64)))
print(pages() - before)
"""
    new = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    # Of 240 MB, which are 58,000 pages and new for each array without it.
    assert int(new) < 15_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_process_leaves_out_what_its_parent_had_in_memory() -> None:
    parents = b"x" * (256 << 20)
    code = "from pipelines.engine import machine; print(machine.peak_bytes()['peak_bytes'])"
    peak = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert 1 << 20 < peak < len(parents)
