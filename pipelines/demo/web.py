"""A small web on loopback: Python's documentation server behind a proxy that maps host names to its pages.

The proxy only answers for the demo's host names, so the demo needs no name server and connects to no other machine.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from pipelines.engine.retry import PROXY_VARIABLES
from pipelines.errors import WebtextError

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
# Without warnings of deprecated modules, which leave a variable in the module that happens to import them first.
_PYDOC = "import pydoc, warnings; warnings._deprecated = lambda *_, **__: None; pydoc.cli()"
_SERVERS = 2
_PROXY_VARIABLES = (*PROXY_VARIABLES, *map(str.upper, PROXY_VARIABLES))
_ROBOTS = b"User-agent: *\nDisallow: /test\nDisallow: /*.tests.html$\n"


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

    names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_") and name not in _EXCLUDED)
    modules = [name for name in names if importlib.util.find_spec(name) is not None]
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


@contextlib.contextmanager
def demo_web() -> Iterator[None]:
    """Serve the demo's pages while the block runs; HTTP requests of this process and its children are sent there."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(_pydoc_server()) for _ in range(_SERVERS)]
        proxy = stack.enter_context(_Proxy(demo_routes(), ports))
        stack.callback(proxy.shutdown)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        stack.enter_context(_proxy_environment(f"http://127.0.0.1:{proxy.server_port}"))
        yield


@contextlib.contextmanager
def _pydoc_server() -> Iterator[int]:
    """Run pydoc's server on a free loopback port and yield the port; the server exits when its input ends."""
    command = [sys.executable, "-W", "ignore", "-c", _PYDOC, "-n", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        greeting = server.stdout.readline()
        if "Server ready at" not in greeting:
            server.kill()
            raise WebtextError(
                f"Python's documentation server (pydoc) did not start ({greeting.strip() or 'no output'})"
            )
        # Drain what imported modules print, or the full pipe would block pydoc.
        threading.Thread(target=server.stdout.read, daemon=True).start()
        try:
            yield int(greeting.rstrip().rstrip("/").rsplit(":", 1)[1])
        finally:
            server.kill()


@contextlib.contextmanager
def _proxy_environment(proxy: str) -> Iterator[None]:
    saved = {name: os.environ.pop(name) for name in (*_PROXY_VARIABLES, "no_proxy", "NO_PROXY") if name in os.environ}
    os.environ.update(dict.fromkeys(_PROXY_VARIABLES, proxy))
    try:
        yield
    finally:
        for name in _PROXY_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(saved)


class _Proxy(http.server.ThreadingHTTPServer):
    """Answers absolute-URI requests for the demo's pages from the pydoc servers."""

    daemon_threads = True

    def __init__(self, routes: dict[str, str], ports: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.routes = routes
        self.ports = ports
        # pydoc serves one request at a time.
        self.locks = [threading.Lock() for _ in ports]


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    server: _Proxy

    def do_GET(self) -> None:
        """Answer with a page or robots.txt; 404 for other paths of a known host, 502 for an unknown host."""
        parts = urlsplit(self.path)
        hosts = {urlsplit(url).netloc for url in self.server.routes}
        if parts.netloc not in hosts:
            self._answer(502, "text/plain", b"no such host in the demo's web\n")
        elif parts.path == "/robots.txt":
            self._answer(200, "text/plain", _ROBOTS)
        elif (path := self.server.routes.get(self.path)) is None:
            self._answer(404, "text/html", b"<html><title>404</title><p>No such page.</p></html>")
        else:
            self._answer(200, "text/html; charset=UTF-8", self._pydoc_page(path))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _pydoc_page(self, path: str) -> bytes:
        number = len(path) % len(self.server.ports)
        with self.server.locks[number]:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.ports[number], timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", path)
                # Without addresses, pages are the same at every run.
                return re.sub(rb"\b(at|handle)( |&nbsp;)(0x)?[0-9a-f]{6,}", b"", connection.getresponse().read())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
