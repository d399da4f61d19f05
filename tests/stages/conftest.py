"""What the tests of stages share: no proxy of this machine, and a local web."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_web import PROXY_VARIABLES, LocalWeb


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def web() -> Iterator[LocalWeb]:
    """A web with one page, `/live`."""
    with LocalWeb({"/live": b"<p>live</p>"}) as running:
        yield running
