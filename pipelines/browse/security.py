"""Who may use the server: requests with the token of this run, to a host by which it is known, from its own pages."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"
LOOPBACK = ("127.0.0.1", "localhost")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With `no-referrer`, browsers post forms without their Origin.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_FORBIDDEN = "Open the address that `webtext browse` printed: it contains the token of this run.\n"


def protect(token: str, port: int, hosts: Sequence[str]) -> list[Middleware]:
    """Return the middleware that refuses requests from elsewhere; `hosts` are names of this server, or "*".

    A page of another site cannot read this server: its requests lack the cookie (SameSite), after DNS rebinding they
    have another Host, and a form that it posts has another Origin.
    """
    return [
        Middleware(_ResponseHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        # Cookies of all ports of a host are shared.
        Middleware(_TokenRequired, token=token, cookie=f"webtext-{port}"),
    ]


class _ResponseHeaders:
    """Adds the headers that restrict a page to each response that does not set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_restricted)


class _TokenRequired:
    """Refuses requests without the token, in the cookie or, at first, in the URL, which is moved to the cookie."""

    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        answer: ASGIApp
        if self._is_token(request.query_params.get(TOKEN)) and request.method == "GET":
            url = request.url.remove_query_params(TOKEN)
            path = f"/{url.path.lstrip('/')}"  # // begins the name of another host
            answer = RedirectResponse(f"{path}?{url.query}" if url.query else path, 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        elif not self._is_token(request.cookies.get(self._cookie)):
            answer = PlainTextResponse(_FORBIDDEN, 403)
        elif request.method not in ("GET", "HEAD") and not _is_same_origin(request.headers):
            answer = PlainTextResponse("The form is not of this server.\n", 403)
        else:
            answer = self._app
        await answer(scope, receive, send)

    def _is_token(self, value: str | None) -> bool:
        return value is not None and secrets.compare_digest(value.encode(), self._token.encode())


def _is_same_origin(headers: Headers) -> bool:
    return headers.get("origin") == f"http://{headers.get('host')}"
