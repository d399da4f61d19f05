"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The time of an example depends on other load on the machine.
settings.register_profile("webtext", deadline=None)
settings.load_profile("webtext")

# Started in the background of a shell, the tests ignore Ctrl-C, and programs that they start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs, which is not in the repository; tests that need it are skipped if it is missing."""
    folder = Path(os.environ.get("WEBTEXT_TEST_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} does not exist (set WEBTEXT_TEST_DATA to another folder)")
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
