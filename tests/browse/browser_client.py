"""A client of `webtext browse` for tests, in the process of the test."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.testclient import TestClient

from pipelines.browse.app import make_app
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
