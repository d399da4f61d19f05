"""A client of `webtext browse` for tests, in the process of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.testclient import TestClient

from pipelines.browse.app import make_app, make_server
from pipelines.browse.site import Site
from pipelines.engine.run import RunOptions
from pipelines.records.document_options import DocumentConfig

PORT = 8765
TOKEN = "secret"


def open_client(source: str | Sequence[str], *, with_token: bool = True) -> TestClient:
    """Return a client of a server for a corpus, or for inputs; with the cookie of the token unless it is not wanted."""
    app = make_app(Site(source, DocumentConfig(), RunOptions()), TOKEN, PORT)
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)
    if with_token:
        client.cookies.set(f"webtext-{PORT}", TOKEN)
    return client


@contextmanager
def serve_in_thread(source: str | Sequence[str]) -> Iterator[str]:
    """Serve a corpus, or inputs, in a thread, which takes seconds less than `webtext browse`; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        app = make_app(Site(source, DocumentConfig(), RunOptions()), TOKEN, port)
        server = make_server(app)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            # Chromium may keep a connection open, for which the end of the server would wait.
            server.should_exit = server.force_exit = True
            thread.join()
