"""Packages that only training and models need."""

from __future__ import annotations

import os
from importlib.util import find_spec

from pipelines.errors import WebtextError


def require_torch() -> None:
    """Check that torch and safetensors are installed; call it before importing torch.

    Raises WebtextError with the command that installs them.
    """
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise WebtextError(
            f"{' and '.join(missing)} not installed; in the checkout of webtext, run: pip install '.[train]'"
        )
    # By default OpenMP's threads spin while they wait for each other. If other programs use the cores, a small model
    # then trains several times slower than on one thread. The results are the same when they sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
