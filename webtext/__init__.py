"""The Python API: every stage of webtext as a function, its config, and how to run it.

    import webtext

    webtext.dedup(webtext.DedupConfig(), documents="docs.jsonl", output="unique", options=webtext.RunOptions())

Each name is imported when it is first used, so that importing this module loads neither torch nor any other library.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

# The names and their modules, which type checkers read as well.
_STUB = pkgutil.get_data(__name__, "__init__.pyi") or b""
_MODULES = {name: module for module, name in re.findall(r"from (\S+) import (\w+)", _STUB.decode())}
# These import torch, which may not be installed.
__all__ = [name for name in _MODULES if name not in ("TokenStream", "generate")]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
