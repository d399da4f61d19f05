"""A fetch of a hostile web: the outcome of each behavior, and bounds of time, memory and requests."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pycurl
import pytest
from fetch_run import Fetched, read_rows, run_fetch
from hostile_web import AUTHORITY, BEHAVIORS, NAMES, TEXT, HostileWeb
from warm_processes import start_process

from pipelines.engine.machine import peak_bytes, resident_bytes
from pipelines.stages.fetch import addresses, transfer


def _fetch(folder: Path, urls: list[str]) -> None:
    """Fetch without a connection to any other address than that of the servers, which counts as public."""
    os.environ["REQUESTS_CA_BUNDLE"] = str(folder / "authority.pem")
    resolve, open_socket = socket.getaddrinfo, transfer.Transfer._open_socket

    def resolve_here(host: str, port: int, _: object, kind: int) -> Any:
        return resolve(NAMES.get(host, host), port, 0, kind, 0, socket.AI_NUMERICHOST)

    def open_here(self: Any, purpose: int, address: Any) -> Any:
        opened = open_socket(self, purpose, address)
        assert opened == pycurl.SOCKET_BAD or address[3][0] == "127.0.0.1", address
        return opened

    socket.getaddrinfo = resolve_here  # type: ignore[assignment]
    transfer.Transfer._open_socket = open_here  # type: ignore[method-assign]
    is_public = addresses.is_public
    addresses.is_public = lambda address: address == "127.0.0.1" or is_public(address)
    idle_bytes, started, cpu_started = resident_bytes() or 0, time.monotonic(), time.process_time()
    run_fetch(
        folder, urls, allow_private_addresses=False, per_domain_hosts=len(urls), per_host_delay=0.1, max_wait=0.3,
        timeout=3.0, max_page_bytes=1 << 20, retries=1,
    )  # fmt: skip
    figures = {
        "memory": peak_bytes()["peak_bytes"] - idle_bytes,
        "seconds": time.monotonic() - started,
        "cpu_seconds": time.process_time() - cpu_started,
    }
    (folder / "figures.json").write_text(json.dumps(figures))


@dataclasses.dataclass(frozen=True)
class _Run:
    """The rows of both links of each behavior, in order, and what the fetch took."""

    rows: dict[str, list[dict[str, Any]]]
    requests: dict[str, int]
    figures: dict[str, float]


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> _Run:
    folder = tmp_path_factory.mktemp("hostile")
    AUTHORITY.cert_pem.write_to_path(str(folder / "authority.pem"))
    with HostileWeb() as web:
        urls = [f"{origin}{path}" for origin in web.origins.values() for path in ("/page", "/after")]
        process = start_process(_fetch, folder, urls)
        process.join(120)
        process.kill()
        assert process.exitcode == 0
    details = {row["url"]: f"{row['reason']}: {row['detail']}" for row in read_rows(folder / "fetch", "dropped")}
    rows = [row | {"detail": details.get(row["url"], "ok")} for row in Fetched(folder / "fetch", None).rows]
    assert [row["url"] for row in rows] == urls
    figures = json.loads((folder / "figures.json").read_text())
    return _Run({name: rows[2 * n : 2 * n + 2] for n, name in enumerate(web.origins)}, web.requests, figures)


@pytest.mark.parametrize("name", BEHAVIORS)
def test_the_outcome_of_a_behavior(hostile_run: _Run, name: str) -> None:
    page, _ = hostile_run.rows[name]
    assert page["detail"].startswith(BEHAVIORS[name].outcome)
    assert (": unexpected" in page["detail"], page["outcome"] == "ok") == (False, page["detail"] == "ok")


def test_the_other_links_go_on(hostile_run: _Run) -> None:
    pages = {name: after for name, (_, after) in hostile_run.rows.items()}
    expected = {name: behavior.outcome_after for name, behavior in BEHAVIORS.items()}
    assert [name for name in pages if not pages[name]["detail"].startswith(expected[name])] == []
    sizes = {row["bytes"] for row in pages.values() if row["outcome"] == "ok"}
    assert sizes == {len(TEXT)}


def test_memory_time_and_requests_are_bounded(hostile_run: _Run) -> None:
    # Rules of robots.txt that take seconds to parse stop the loop; the deadlines alone take 6 s.
    assert hostile_run.figures["memory"] < 250 << 20
    assert hostile_run.figures["seconds"] < 40
    assert hostile_run.figures["cpu_seconds"] < 12
    assert max(hostile_run.requests.values()) <= 12
