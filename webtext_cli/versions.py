"""The version of webtext, and of the libraries and the Python that it runs on."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re

_PACKAGE = "webtext-kit"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def describe_versions(as_json: bool) -> str:
    """Return the version as one line, or as JSON with the versions of Python, the system and all libraries.

    A library that is not installed is null.
    """
    version = importlib.metadata.version(_PACKAGE)
    if not as_json:
        return f"webtext, version {version}"
    requirements = importlib.metadata.requires(_PACKAGE) or []
    names = sorted({match[0] for requirement in requirements if (match := _NAME.match(requirement))}, key=str.lower)
    described = {
        "webtext": version,
        "python": platform.python_version(),
        "system": platform.platform(),
        "libraries": {name: _version_of(name) for name in names},
    }
    return json.dumps(described, indent=1)


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
