"""The pages of the demo's web: their URLs, and the paths at which pydoc serves them."""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from urllib.parse import quote

MODULES_HOST = "modules.pydoc.example"
PACKAGES_HOST = "packages.pydoc.example"
TOPICS_HOST = "topics.pydoc.example"
MIRROR_HOST = "mirror.example"
WIKIPEDIA_HOST = "en.wikipedia.org"

# Documenting a module imports it: these open a window or a browser, print, or are Python's own test suite.
_EXCLUDED = {"antigravity", "idlelib", "lib2to3", "pydoc_data", "test", "this", "tkinter", "turtle", "turtledemo"}
_PACKAGES = (
    "asyncio", "collections", "concurrent", "ctypes", "email", "html", "http", "importlib", "json", "logging",
    "multiprocessing", "sqlite3", "unittest", "urllib", "wsgiref", "xml", "zoneinfo",
)  # fmt: skip


def module_names() -> list[str]:
    """Return the public top-level modules of this Python's standard library."""
    names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_") and name not in _EXCLUDED)
    return [name for name in names if importlib.util.find_spec(name) is not None]


def submodule_names() -> list[str]:
    """Return the public modules one level inside the larger packages of the standard library."""
    names = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            modules = pkgutil.iter_modules(spec.submodule_search_locations)
            names += [f"{package}.{module.name}" for module in modules if not module.name.startswith("_")]
    return sorted(names)


def demo_routes() -> dict[str, str]:
    """Return the path at which pydoc serves each page of the demo's web, by URL."""
    import pydoc

    modules = module_names()
    # pydoc serves the topics of Python's reference under their upper-case names.
    topics = sorted(key for key in pydoc.Helper.topics if key.isupper())
    routes = {f"http://{MODULES_HOST}/{name}.html": f"/{name}.html" for name in modules}
    routes |= {f"http://{PACKAGES_HOST}/{name}.html": f"/{name}.html" for name in submodule_names()}
    # Only half of the topics, so that the overlap report finds part of the reference.
    routes |= {f"http://{TOPICS_HOST}/{key}": f"/topic?key={quote(key)}" for key in topics[::2]}
    # A mirror of some pages, and URLs under wikipedia.org that serve topics of the reference.
    routes |= {f"http://{MIRROR_HOST}/python/{name}.html": f"/{name}.html" for name in modules[::12]}
    routes |= {f"http://{WIKIPEDIA_HOST}/wiki/{key.title()}": f"/topic?key={quote(key)}" for key in topics[1:12:4]}
    return routes
