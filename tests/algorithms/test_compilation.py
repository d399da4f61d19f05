"""Kernels start without what they do not use."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from filelock import FileLock, Timeout
from numba.extending import overload

from pipelines.algorithms.bpe.word_table import count_words
from pipelines.algorithms.kernels import compilation
from pipelines.algorithms.kernels.compilation import cache_folder, kernel, source_hash


def test_a_kernel_is_loaded_from_the_cache_without_what_compiles_it() -> None:
    """The last three cost a quarter of a second each in every process; and what is not in the cache compiles."""
    assert count_words([b"a"]) == [(b"a", 1)]
    script = """
import sys
import numpy as np, numba
from pipelines.algorithms.bpe.word_table import count_words
assert count_words([b"a a"]) == [(b"a", 1), (b" a", 1)]
print(sorted({"numba.np.linalg", "scipy.linalg", "awkward"} & set(sys.modules)))
print(numba.njit(lambda left, right: np.dot(left, right))(np.ones(3), np.ones(3)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "3.0"]


def test_a_read_only_installation_caches_kernels_in_the_home_or_else_in_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(package: str, home: str) -> Path:
        monkeypatch.setenv("HOME", home)
        return cache_folder.__wrapped__(Path(package))

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = str(tmp_path / "home")
    # Nobody can create a folder in /dev/null.
    assert folder(str(tmp_path), home) == tmp_path / "__pycache__"
    assert folder("/dev/null", home).parent == tmp_path / "home" / ".cache" / "webtext"
    assert folder("/dev/null", "/dev/null").parent == tmp_path


@pytest.mark.parametrize("was_enabled", [True, False])
def test_no_garbage_is_collected_while_a_kernel_is_compiled(
    was_enabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "cache_folder", lambda: tmp_path)
    is_enabled = []

    def increment(number: Any) -> Any:
        return number + 1

    @overload(increment)
    def _compiled_increment(number: Any) -> Any:
        is_enabled.append(gc.isenabled())
        return increment

    twice = kernel(lambda number: increment(increment(number)))
    if not was_enabled:
        gc.disable()
    try:
        assert twice(1) == 3
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
    assert is_enabled
    assert not any(is_enabled)


def test_a_cache_of_another_version_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(
        "from pipelines.algorithms.kernels.compilation import kernel\n\n"
        "@kernel\ndef increment(number):\n    return number + 1\n"
    )
    script = "import sys; sys.path.append(sys.argv[1]); from tiny import increment; print(increment(1))"
    cache = tmp_path / "cache"

    def run() -> bytes:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr
        (index,) = cache.rglob("tiny.increment*.nbi")
        return index.read_bytes()

    written = run()
    (index,) = cache.rglob("tiny.increment*.nbi")
    index.write_bytes(pickle.dumps(numba.__version__) + b"ctiny\nGone\n.")
    assert run() == written
    replaced_at = index.stat().st_mtime_ns
    assert run() == written
    assert index.stat().st_mtime_ns == replaced_at  # loaded, not compiled again


def test_a_kernel_is_locked_only_while_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process must not wait for the lock while the kernel runs, and takes none if it is in the cache."""
    monkeypatch.setattr(compilation, "cache_folder", lambda: tmp_path)
    states = []

    class Dispatcher:
        def compile(self, _types: Any) -> None:
            states.append(("compiles", is_locked()))

        def __call__(self) -> None:
            states.append(("runs", is_locked()))

    def is_locked() -> bool:
        try:
            with FileLock(tmp_path / f"{name}.lock", timeout=0):
                return False
        except Timeout:
            return True

    name = f"word_table.{count_words.__name__}"
    compilation._Kernel(count_words, Dispatcher())()
    assert states == [("compiles", True), ("runs", False)]
    (tmp_path / f"{name}-0.nbi").write_text(source_hash(count_words.__module__))
    compilation._Kernel(count_words, Dispatcher())()
    assert states[2:] == [("compiles", False), ("runs", False)]


def test_only_changes_of_what_a_module_imports_make_its_kernels_compile_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashes() -> list[str]:
        source_hash.cache_clear()
        return [source_hash(f"pipelines.algorithms.{name}") for name in ("bpe.word_table", "quality.lines")]

    import pipelines.algorithms.bpe.word_table
    import pipelines.algorithms.quality.lines  # noqa: F401

    before = hashes()
    changed = tmp_path / "split_classes.py"
    changed.write_text("# another source")
    monkeypatch.setattr("pipelines.algorithms.bpe.split_classes.__file__", str(changed))
    words, lines = hashes()
    assert words != before[0]
    assert lines == before[1]
    # `from pipelines.algorithms.quality import tokens` imports a module, too.
    monkeypatch.setattr("pipelines.algorithms.quality.tokens.__file__", str(changed))
    assert hashes() != [words, lines]
