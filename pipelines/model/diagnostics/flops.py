"""FLOPs of training, and the share of a GPU's peak that a run reaches (model FLOPs utilization, MFU).

Utilization is the model's FLOPs by the formula below over the GPU's dense 16-bit peak. Recomputation for activation
checkpointing does not count, so the figures of runs with and without it are comparable.
"""

from __future__ import annotations

import functools
import re
import tomllib

from pipelines import storage
from pipelines.storage.resources import data_path


def flops_per_token(parameters: int, layers: int, width: int, context: int) -> int:
    """Return the FLOPs, forward and backward, per training token: 6 N + 12 L d T.

    N is the number of parameters, with the shared embedding once; L layers, d the width, T the context. The second
    term is attention over all pairs of tokens, conventionally without the causal mask.
    """
    return 6 * parameters + 12 * layers * width * context


def peak_flops(device_name: str) -> float | None:
    """Return the dense 16-bit peak in FLOP/s of a GPU, by torch's name for it; None if it is not in `gpus.toml`."""
    return next((peak for name, peak in _gpus() if re.fullmatch(name, device_name.strip())), None)


def utilization(tokens_per_second: float, token_flops: int, device_name: str, devices: int) -> float | None:
    """Return the share of the GPUs' peak that the model's FLOPs take; None for an unlisted GPU."""
    peak = peak_flops(device_name)
    return None if peak is None else tokens_per_second * token_flops / (peak * devices)


@functools.cache
def _gpus() -> tuple[tuple[str, float], ...]:
    table = tomllib.loads(storage.read_bytes(data_path("gpus.toml")).decode())
    return tuple((gpu["name"], gpu["peak_tflops"] * 1e12) for gpu in table.values())
