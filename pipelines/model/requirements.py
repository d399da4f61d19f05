"""What only training needs, and a corpus does not."""

from __future__ import annotations

import os
from importlib.util import find_spec

from pipelines.core.errors import WebtextError


def require_torch() -> None:
    """Make ready for the import of torch; call it before.

    Raises WebtextError, with the command that installs them, where torch or safetensors is not installed.
    """
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise WebtextError(f"{' and '.join(missing)} not installed; install with: pip install 'webtext-kit[train]'")
    # OpenMP's threads spin while they wait for each other. Where other programs want the cores too, a small model
    # then trains several times slower than on one thread. The sums are the same when they sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
