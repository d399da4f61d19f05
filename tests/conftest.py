"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does, so it decides nothing here.
settings.register_profile("webtext", deadline=None)
settings.load_profile("webtext")

# A shell that runs the tests in the background ignores Ctrl-C, and every program that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs, which is not part of the repository; tests that need it skip where it is missing."""
    folder = Path(os.environ.get("WEBTEXT_TEST_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real inputs are not here: {folder} (name another folder with WEBTEXT_TEST_DATA)")
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium for the tests of pages, which are skipped if it is not installed."""
    from headless_chromium import Browser, chromium  # in tests/reports

    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with Browser(program) as started:
        yield started
