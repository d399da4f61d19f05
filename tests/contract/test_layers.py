"""Only the storage layer accesses a disk."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
# The storage layer with object stores and local copies, the package's own data, the system's memory figures, a filter
# that requests huge pages by an anonymous mapping, and the cache of compiled kernels.
_ALLOWED = {
    "storage/files.py",
    "storage/paths.py",
    "storage/object_files.py",
    "storage/object_store.py",
    "storage/local_cache.py",
    "storage/resources.py",
    "engine/machine.py",
    "algorithms/bloom/blocked.py",
    "algorithms/kernels/compilation.py",
}
_DISK_MODULES = {"pathlib", "shutil", "tempfile", "glob", "fsspec", "mmap"}
_DISK_CALLS = {
    "open", "mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmtree", "savez", "tofile", "fromfile",
    "save_file", "load_file", "from_file", "save_pretrained",
}  # fmt: skip
_MODULES_OF_CALLS = {"os", "np", "numpy", "shutil", "io", "torch", "safetensors", "gzip", "bz2", "lzma", "codecs"}


def _sources() -> list[Path]:
    return [path for path in sorted(_PIPELINES.rglob("*.py")) if str(path.relative_to(_PIPELINES)) not in _ALLOWED]


def _offences(path: Path) -> list[str]:
    offences = []
    for node in ast.walk(ast.parse(path.read_text())):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
            offences += [f"{line}: import {name}" for name in modules if name.split(".")[0] in _DISK_MODULES]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _DISK_MODULES:
            offences.append(f"{line}: from {node.module} import ...")
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                offences.append(f"{line}: open(...)")
            if (
                isinstance(function, ast.Attribute)
                and isinstance(function.value, ast.Name)
                and function.value.id in _MODULES_OF_CALLS
                and function.attr in _DISK_CALLS
            ):
                offences.append(f"{line}: {function.value.id}.{function.attr}(...)")
    return offences


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(_PIPELINES)))
def test_only_the_storage_layer_touches_a_disk(path: Path) -> None:
    assert _offences(path) == []


def test_the_check_finds_violations(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("import os, tempfile\nfrom pathlib import Path\nopen('a')\nos.replace('a', 'b')\n")
    assert len(_offences(source)) == 4
