"""What the tests of comparisons share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Models as small as these only lose by more threads."""
    torch.set_num_threads(1)
