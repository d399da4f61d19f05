"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The time of an example depends on other load on the machine.
settings.register_profile("webtext", deadline=None, max_examples=int(os.environ.get("WEBTEXT_TEST_EXAMPLES", "50")))
settings.load_profile("webtext")

# As `webtext pretrain` sets it, but before torch is imported: threads that wait for work in a loop would take the cores
# from other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Started in the background of a shell, the tests ignore Ctrl-C, and programs that they start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests kill processes, but not the machine: no file needs to be on the disk, for which every file of a result waits.
os.fsync = lambda _descriptor: None

_REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_sessionstart() -> None:
    """Collect no garbage while thousands of tests are collected, which would take a quarter of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt modules and tests from all collections of garbage: each would visit them, for 0.1 s."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs, which is not in the repository; tests that need it are skipped if it is missing."""
    folder = Path(os.environ.get("WEBTEXT_TEST_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} does not exist (set WEBTEXT_TEST_DATA to another folder)")
    return folder


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 on this machine."""
    server = pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[server]'")
    pytest.importorskip("obstore", reason="needs the package obstore: pip install '.[object-stores]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket, which also programs that the test starts can use."""
    environment = {"AWS_ENDPOINT_URL": s3_server, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in (environment | {"AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    name = f"test-{uuid.uuid4().hex[:12]}"
    request = urllib.request.Request(f"{s3_server}/{name}", method="PUT")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
        return f"s3://{name}"


@pytest.fixture
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers, and the children of extract, are forked from a process that has imported what they need."""
    from warm_processes import multiprocessing_with_forks

    for module in ("pipelines.engine.executor", "pipelines.stages.extract.child"):
        monkeypatch.setattr(f"{module}.multiprocessing", multiprocessing_with_forks())


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The page of `browser`, and the list of its problems, for fixtures of the session."""
    from headless_chromium import start_chromium  # in tests/reports

    try:
        with start_chromium() as page_and_problems:
            yield page_and_problems
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A page of headless Chromium, which must have no problems; the test is skipped if Chromium is not installed."""
    page, problems = chromium
    problems.clear()
    yield page
    page.evaluate("0")  # returns after the events of the page
    assert problems == []


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> pytest.CaptureFixture[str]:
    """The captured output of a program whose standard output is a terminal."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: stream is sys.stdout)
    return capsys


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of `time.monotonic`, in seconds, as the only element: only the test changes it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now
