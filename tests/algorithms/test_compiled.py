"""Kernels are compiled also where their machine code cannot be kept."""

from __future__ import annotations

from typing import Any

import numba
import pytest

from pipelines.algorithms.compiled import kernel


def _twice(number):  # type: ignore[no-untyped-def]
    return 2 * number


def test_without_a_place_for_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit

    def without_cache(**options: Any) -> Any:
        if options.get("cache"):
            # What numba raises in a read-only installation of a user without a home.
            raise RuntimeError("cannot cache function '_twice': no locator available for file 'compiled.py'")
        return njit(**options)

    assert kernel(_twice)(4) == 8
    monkeypatch.setattr(numba, "njit", without_cache)
    assert kernel(_twice)(21) == 42
