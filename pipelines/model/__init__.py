"""GPT-2: network, training, inference and file formats. Only modules below this package import torch."""

from __future__ import annotations

import os

from pipelines.extras import require_extra


def require_torch() -> None:
    """Raise WebtextError, with the command that installs them, without torch or safetensors; call before importing."""
    require_extra("train", "a model", "torch", "safetensors")
    # By default OpenMP's threads spin while they wait for each other. If other programs use the cores, a small model
    # then trains several times slower than on one thread. The results are the same when they sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
