"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs, which is not part of the repository; tests that need it skip where it is missing."""
    folder = Path(os.environ.get("WEBTEXT_TEST_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real inputs are not here: {folder} (name another folder with WEBTEXT_TEST_DATA)")
    return folder
