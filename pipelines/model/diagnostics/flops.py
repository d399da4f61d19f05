"""What training costs in floating-point operations, and which share of a card's peak a run reaches (MFU).

Utilisation is the model's operations by the formula below over the card's dense 16-bit peak. What is computed twice to
save memory does not count, so the figures of runs with and without recomputation compare.
"""

from __future__ import annotations

import functools
import re
import tomllib

from pipelines.core import storage
from pipelines.core.resources import data_path


def flops_per_token(parameters: int, layers: int, width: int, context: int) -> int:
    """Return the operations, forward and backward, of one token of training: 6 N + 12 L d T.

    N are all parameters, the embedding that is also the output once; L layers, d the width, T the context. The second
    part is attention's products of all pairs of tokens, as if none were masked, as is the custom.
    """
    return 6 * parameters + 12 * layers * width * context


def peak_flops(device_name: str) -> float | None:
    """Return the dense 16-bit peak of a card in FLOP/s, by torch's name for it; None where it is not listed."""
    found = (peak for name, peak in _cards() if re.fullmatch(name, device_name.strip()))
    return next(found, None)


def utilisation(tokens_per_second: float, flops_token: int, device_name: str, devices: int) -> float | None:
    """Return the share of the cards' peak that the model's operations take; None for an unlisted card."""
    peak = peak_flops(device_name)
    return None if peak is None else tokens_per_second * flops_token / (peak * devices)


def utilisation_text(share: float | None) -> str:
    """Write a utilisation for people: `41.3%`, or `unknown`."""
    return "unknown" if share is None else f"{100 * share:.1f}%"


@functools.cache
def _cards() -> tuple[tuple[str, float], ...]:
    table = tomllib.loads(storage.read_bytes(data_path("cards.toml")).decode())
    return tuple((card["name"], card["peak_tflops"] * 1e12) for card in table.values())
