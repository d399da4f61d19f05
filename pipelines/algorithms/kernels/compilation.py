"""Numba compilation of kernels: entry points that Python calls, helpers inside them, and where machine code is cached.

Compile time is what a user waits for at first use, so kernels follow rules that keep it low:

- A kernel allocates nothing and calls nothing of NumPy: its caller passes every array. So numba counts no references,
  which is most of the code that it otherwise generates.
- A helper has no wrapper by which Python could call it.
- A function is compiled for each combination of types, and a literal has a type of its own: the caller converts (to
  `np.int64(0)`).

Only public interfaces of numba are used, with one exception that saves time: docs/decisions/0015-numba.md.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from numba.core import event

from pipelines.algorithms.kernels import compile_events

# Typed as they are used: with options that have no documentation.
_njit: Any = numba.njit
_config: Any = numba.config

_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
_ALGORITHMS = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(r"^ *from (pipelines\.algorithms[\w.]*) import ([\w, ]*)", re.MULTILINE)
# A worker waits this long for another process that compiles the same kernel.
_LOCK_TIMEOUT_S = 60


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function that is compiled at its first call, cached on disk, and releases the GIL while it runs.

    `options` are further ones of numba's.
    """
    before, _config.CACHE_LOCATOR_CLASSES = _config.CACHE_LOCATOR_CLASSES, f"{__name__}.{SourceLocator.__name__}"
    try:
        dispatcher = _njit(cache=True, **_OPTIONS, **options)(function)
        with contextlib.suppress(AttributeError):
            # Without what only compilation needs: numba would first load that, in 0.2 s.
            dispatcher._cache.load_overload = dispatcher._cache._load_overload
        return _Kernel(function, dispatcher)
    except (OSError, RuntimeError):  # nowhere to cache: compiled by each process
        return _njit(**_OPTIONS, **options)(function)
    finally:
        _config.CACHE_LOCATOR_CLASSES = before


def helper(function: Callable[..., Any]) -> Any:
    """Return a function that kernels and helpers can call; Python cannot."""
    return _njit(no_cpython_wrapper=True, **_OPTIONS)(function)


def as_read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array as one that is not written, as numba compiles for each kind; memory maps become plain arrays."""
    view: npt.NDArray[Any] = np.asarray(array).view(np.ndarray)[:]
    view.flags.writeable = False
    return view


class _Kernel:
    """A compiled function, which one process compiles while others that call it wait, to load it from the cache."""

    def __init__(self, function: Callable[..., Any], dispatcher: Any) -> None:
        self._module = function.__module__
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._dispatcher = dispatcher
        self._call = self._call_first

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return self._call(*arguments)

    def _call_first(self, *arguments: Any) -> Any:
        types = tuple(map(numba.typeof, arguments))
        lock = FileLock(cache_folder() / f"{self._name}.lock")
        indexes = list(cache_folder().glob(f"{self._name}-*.nbi"))
        with contextlib.suppress(Timeout, OSError):
            # An index contains the hash of its source.
            if not any(source_hash(self._module).encode() in index.read_bytes() for index in indexes):
                lock.acquire(timeout=_LOCK_TIMEOUT_S)
        try:
            self._dispatcher.compile(types)
        except (AttributeError, ImportError):  # the index names a type that this version of webtext does not have
            for index in indexes:
                index.unlink(missing_ok=True)
            self._dispatcher.compile(types)
        finally:
            lock.release()
        self._call = self._dispatcher
        return self._dispatcher(*arguments)


class _CompilationListener(event.Listener):
    """Reports that a kernel is compiled, and stops garbage collection meanwhile, which takes a sixth of the time."""

    _depth = 0  # helpers are compiled within a kernel
    _was_enabled = False

    def on_start(self, _event: Any) -> None:
        """Note the start of a compilation."""
        if not self._depth:
            compile_events.report()
            self._was_enabled = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, _event: Any) -> None:
        """Note the end of a compilation."""
        self._depth -= 1
        if not self._depth and self._was_enabled:
            gc.enable()


event.register("numba:compile", _CompilationListener())


class SourceLocator:
    """Tells numba's cache where kernels are stored, and which source they were compiled from."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._module = function.__module__

    @classmethod
    def from_function(cls, function: Callable[..., Any], _path: str) -> SourceLocator:
        """Return the locator of a function."""
        return cls(function)

    def get_cache_path(self) -> str:
        """Return the folder of the cache."""
        return str(cache_folder())

    def ensure_cache_path(self) -> None:
        """Create the folder of the cache where someone has removed it."""
        cache_folder().mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        """Return a hash of the module and of those it imports, whose helpers and constants the kernel contains."""
        return source_hash(self._module)

    def get_disambiguator(self) -> str:
        """Return what makes the names of functions in modules of the same name distinct."""
        return hashlib.sha256(self._module.encode()).hexdigest()[:8]


@functools.cache
def cache_folder(package: Path = _ALGORITHMS) -> Path:
    """Return the first writable folder of: $NUMBA_CACHE_DIR, next to the source, the user's cache, a temporary folder.

    Raises OSError if none is.
    """
    user = f"webtext-{os.getuid() if hasattr(os, 'getuid') else os.environ.get('USERNAME', 'user')}"
    installation = hashlib.sha256(str(package).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates = [package / "__pycache__", Path(home, "webtext", installation)]
    if _config.CACHE_DIR:
        candidates.insert(0, Path(_config.CACHE_DIR, f"webtext_{installation}"))
    for folder in candidates:
        if folder.is_absolute() and _is_writable(folder):
            return folder
    # Others can write to the folder of temporary files too, so nothing is loaded from a folder that is not our own.
    temporary = Path(tempfile.gettempdir(), user)
    temporary.mkdir(mode=0o700, exist_ok=True)
    if temporary.is_symlink() or (hasattr(os, "getuid") and temporary.stat().st_uid != os.getuid()):
        raise OSError(f"{temporary}: owned by another user")
    return temporary


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@functools.cache
def source_hash(module: str) -> str:
    """Return a hash of the source of a module and of all modules of `pipelines.algorithms` below it."""
    sources: dict[str, bytes] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        path = getattr(sys.modules.get(name), "__file__", None)
        if name not in sources and path is not None:
            sources[name] = Path(path).read_bytes()
            for module, names in _IMPORT.findall(sources[name].decode()):
                # The names may be those of modules.
                pending += [module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))]
    return hashlib.sha256(b"\0".join(sources[name] for name in sorted(sources))).hexdigest()
