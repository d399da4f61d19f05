"""The server of `webtext browse`: the pages, their style and script, the reports of the corpus, and errors."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines import storage
from pipelines.browse import document, documents, dropped, groups, models, overview, searching, tokenizer
from pipelines.browse.security import LOOPBACK, TOKEN, protect
from pipelines.browse.site import Site, site_of
from pipelines.errors import StorageError, WebtextError
from pipelines.reports.render import ENVIRONMENT

# Modules with ROUTES and NAVIGATION (pairs of path and label), in the order of the navigation.
PAGES = (overview, documents, document, dropped, groups, tokenizer, models, searching)
_STATIC = {"style.css": "text/css", "browse.js": "text/javascript"}
# A traced text of 20,000 characters, each of which has at most 4 bytes, written as %XX.
_MAX_URL_BYTES = 1 << 18
# Reports contain their style and script, which this policy of theirs admits by hash.
_REPORT_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([ !#-~]*)">')


def make_app(site: Site, token: str, port: int, hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """Return the application; it answers requests with the token that are sent to one of the hosts."""
    pages = [page for page in PAGES if site.corpus or page not in (models, searching)]  # which only a corpus has
    site.navigation = [link for page in pages for link in page.NAVIGATION]
    app = Starlette(
        routes=[
            *(route for page in PAGES for route in page.ROUTES),
            *(Route(f"/{name}", _static) for name in _STATIC),
            Route("/reports/{folder}/{name}", _report),
        ],
        middleware=protect(token, port, hosts),
        exception_handlers={WebtextError: _show_error, HTTPException: _show_error},
    )
    app.state.site = site
    return app


def make_server(app: Starlette) -> uvicorn.Server:
    """Return the server of an application."""
    limits: Any = {"http": "h11", "h11_max_incomplete_event_size": _MAX_URL_BYTES}
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", **limits))


def serve(site: Site, host: str, port: int, on_start: Callable[[str], None]) -> None:
    """Serve a corpus until Ctrl-C; `on_start` gets the address. Raises StorageError if the port cannot be used."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise StorageError(f"--port {port}: cannot listen on {host} ({reason}); choose another --port") from error
    port, token = listener.getsockname()[1], secrets.token_urlsafe(16)
    is_everywhere = host in ("0.0.0.0", "::")
    name = f"[{host}]" if ":" in host else host
    app = make_app(site, token, port, ["*"] if is_everywhere else [*LOOPBACK, name.lower()])
    server = make_server(app)
    with listener:
        on_start(f"http://{socket.gethostname() if is_everywhere else name}:{port}/?{TOKEN}={token}")
        with contextlib.suppress(KeyboardInterrupt):  # which uvicorn raises again after its end
            server.run([listener])


async def _static(request: Request) -> Response:
    name = request.url.path.removeprefix("/")
    return Response(ENVIRONMENT.get_template(f"browse/{name}").render(), media_type=_STATIC[name])


def _report(request: Request) -> Response:
    """Return a report of the corpus, which may run its own script but not use this server."""
    site, folder, name = site_of(request), request.path_params["folder"], request.path_params["name"]
    if site.corpus is None or not re.fullmatch(r"[a-z][a-z-]*", folder) or not re.fullmatch(r"[\w-]+\.html", name):
        raise HTTPException(404)
    path = storage.join(site.corpus, folder, name)
    page = storage.read_bytes(path) if storage.is_file(path) else b""
    if not (policy := _REPORT_POLICY.search(page)):
        raise HTTPException(404)
    # Of two directives of a name, the first one counts.
    headers = {"Content-Security-Policy": f"sandbox allow-scripts allow-popups; {policy[1].decode()}"}
    return Response(page, headers=headers, media_type="text/html")


def _show_error(request: Request, error: Exception) -> Response:
    status, message = 400, site_of(request).describe(error)
    if isinstance(error, HTTPException):
        status, message = error.status_code, f"{request.url.path}: there is no such page ({error.detail})"
    return site_of(request).render(request, "error.html", status, message=message)
