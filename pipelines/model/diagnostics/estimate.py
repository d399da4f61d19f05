"""What a training will take, before it starts: memory of each process, disk, operations and time.

Memory is counted from what the backward pass keeps (the sizes below are those of the saved tensors of `gpt2.py`), so it
is an estimate: caches of allocators come on top.
"""

from __future__ import annotations

import dataclasses

from pipelines.core.errors import WebtextError
from pipelines.model.diagnostics.flops import flops_per_token, peak_flops
from pipelines.model.diagnostics.reference_losses import count_text
from pipelines.model.training.recipe import Recipe, parameter_count

# What a run on a listed card is supposed to reach of its peak, before anything is measured.
ASSUMED_UTILISATION = 0.4
_FLOAT, _HALF = 4, 2
# Kept for the backward pass by a layer, in numbers a token and dimension of the width. In 32 bits anyway: the residual
# stream before each of the two norms. In the precision of matrix products: what goes into attention's input (1), query,
# key and value (3), its output (1), and the feed-forward layer's input (1), its middle before and after GELU (8).
_KEPT_FLOATS, _KEPT_PRODUCTS = 2, 14
# Dropout's two masks of a layer and, where attention is not fused (on a CPU with dropout), three squares of all tokens.
_MASKS, _SQUARES = 2, 3
# Of each logit there are, going back: the logarithm of its softmax and the gradients of that and of itself in 32 bits.
# Compiled, these are one piece of code, and only the logit and its gradient are written, in 16 bits.
_LOGIT_BYTES, _COMPILED_LOGIT_BYTES = 12, 4
# On a CPU, in 32 bits, the logits are made for a part of the tokens at a time, so many numbers (see token_loss.py),
# and two matrices of the embedding's size hold its gradient on the way.
_LOGITS_AT_ONCE, _EMBEDDING_GRADIENTS = 1 << 23, 2
# What libraries load and keep once training has begun on a CPU, measured with a model of a few weights.
_LIBRARIES_BYTES = 90_000_000
# Estimates are not exact: only what is short by more than this is refused.
_SURELY = 0.7


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What a training takes; bytes of memory are those of one process.

    `flops` are the operations of all `tokens`; `seconds` are None where nothing tells the speed, and `is_assumed` says
    that the speed follows from a card's peak and not from a measurement. `disk_bytes` holds all checkpoints that are
    kept, one more that is being written, and the final weights.
    """

    device_type: str
    processes: int
    parameters: int
    tokens: int
    weights_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    logits_bytes: int
    library_bytes: int
    checkpoint_bytes: int
    disk_bytes: int
    keep_checkpoints: int
    flops_token: int
    seconds: float | None
    is_assumed: bool

    @property
    def memory_bytes(self) -> int:
        """The sum of the parts: the most that one process has at a time."""
        return self.fixed_bytes + self.activation_bytes + self.logits_bytes

    @property
    def fixed_bytes(self) -> int:
        """What is there all the time: weights, gradients, Adam's moments, and libraries."""
        return self.weights_bytes + self.gradient_bytes + self.optimizer_bytes + self.library_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole training."""
        return self.flops_token * self.tokens


def forecast(
    recipe: Recipe,
    vocab_size: int,
    *,
    device_type: str,
    processes: int = 1,
    sharded: bool = False,
    recompute: bool = False,
    bf16: bool = False,
    compiled: bool = False,
    keep_checkpoints: int = 2,
    tokens_per_second: float | None = None,
    device_name: str = "",
) -> Forecast:
    """Estimate what a training takes on `cpu` or `cuda`; `tokens_per_second` are those of all processes together.

    Without a measured speed it is supposed to be `ASSUMED_UTILISATION` of the peak of a listed card.
    """
    parameters = parameter_count(recipe, vocab_size)
    own = -(-parameters // processes) if sharded else parameters
    flops_token = flops_per_token(parameters, recipe.layers, recipe.width, recipe.context)
    tokens = recipe.steps * recipe.batch_tokens
    speed = tokens_per_second or _assumed_speed(flops_token, device_name, processes)
    checkpoint_bytes = 3 * _FLOAT * parameters  # the weights and Adam's two moments
    return Forecast(
        device_type=device_type,
        processes=processes,
        parameters=parameters,
        tokens=tokens,
        weights_bytes=_FLOAT * own + _copied_bytes(recipe, vocab_size, sharded, bf16),
        gradient_bytes=_FLOAT * own,
        optimizer_bytes=2 * _FLOAT * own,
        activation_bytes=_activation_bytes(recipe, device_type, recompute, bf16),
        logits_bytes=_logits_bytes(recipe, vocab_size, device_type == "cpu", compiled and not sharded),
        library_bytes=_LIBRARIES_BYTES if device_type == "cpu" else 0,
        checkpoint_bytes=checkpoint_bytes,
        disk_bytes=(keep_checkpoints + 1) * checkpoint_bytes + _FLOAT * parameters,
        keep_checkpoints=keep_checkpoints,
        flops_token=flops_token,
        seconds=tokens / speed if speed else None,
        is_assumed=tokens_per_second is None and speed is not None,
    )


def _assumed_speed(flops_token: int, device_name: str, devices: int) -> float | None:
    peak = peak_flops(device_name)
    return ASSUMED_UTILISATION * peak * devices / flops_token if peak else None


def _copied_bytes(recipe: Recipe, vocab_size: int, sharded: bool, bf16: bool) -> int:
    """Return what weights take beside a process's own.

    The copies in 16 bits that products are made of, which the backward pass needs too; where the weights are split over
    processes, two whole layers, of which one is fetched while the other is at work, and the embeddings.
    """
    layer, embedding = 12 * recipe.width**2, vocab_size * recipe.width
    halves = _HALF * (recipe.layers * layer + embedding) if bf16 else 0
    return halves + (_FLOAT * (2 * layer + embedding + recipe.context * recipe.width) if sharded else 0)


def _logits_bytes(recipe: Recipe, vocab_size: int, in_parts: bool, compiled: bool) -> int:
    """Return what the loss of one micro-batch takes; `in_parts` as on a CPU."""
    logits = recipe.micro_batch * recipe.context * vocab_size
    if in_parts:
        matrix = vocab_size * recipe.width
        return _FLOAT * (min(logits, max(_LOGITS_AT_ONCE, vocab_size)) + _EMBEDDING_GRADIENTS * matrix)
    return (_COMPILED_LOGIT_BYTES if compiled else _LOGIT_BYTES) * logits


def _activation_bytes(recipe: Recipe, device_type: str, recompute: bool, bf16: bool) -> int:
    """Return what the backward pass of one micro-batch needs of the forward pass."""
    stream = recipe.micro_batch * recipe.context * recipe.width  # the residual stream, in numbers
    product = _HALF if bf16 else _FLOAT
    layer = (_KEPT_FLOATS * _FLOAT + _KEPT_PRODUCTS * product) * stream
    if recipe.dropout:
        # A CPU keeps the masks as numbers, a card as bits in bytes; the fused attention of a card keeps no mask.
        layer += _MASKS * (_FLOAT if device_type == "cpu" else 1) * stream
        if device_type == "cpu":
            layer += _SQUARES * _FLOAT * recipe.micro_batch * recipe.heads * recipe.context**2
    ends = 2 * _FLOAT * stream  # around the final norm
    if recompute:
        return recipe.layers * _FLOAT * stream + layer + ends
    return recipe.layers * layer + ends


def forecast_lines(forecast: Forecast) -> list[str]:
    """Return the forecast for the terminal: memory, disk, operations and time, a line each."""
    each = " in each process" if forecast.processes > 1 else ""
    return [
        f"memory: about {size_text(forecast.memory_bytes)} more than now{each} ("
        f"weights {size_text(forecast.weights_bytes)}, gradients {size_text(forecast.gradient_bytes)}, "
        f"Adam's moments {size_text(forecast.optimizer_bytes)}, "
        f"activations {size_text(forecast.activation_bytes)}, logits {size_text(forecast.logits_bytes)}"
        f"{f', libraries {size_text(forecast.library_bytes)}' if forecast.library_bytes else ''})",
        f"disk: {size_text(forecast.disk_bytes)} ({forecast.keep_checkpoints} checkpoints of "
        f"{size_text(forecast.checkpoint_bytes)}, one being written, and the final weights)",
        f"operations: {forecast.flops:.2e} ({_flops_text(forecast.flops_token)} a token, "
        f"{count_text(forecast.tokens)} tokens)",
        _time_line(forecast),
    ]


def _flops_text(flops: int) -> str:
    return f"{flops / 1e9:.3g} GFLOP" if flops >= 1e8 else f"{flops / 1e6:.3g} MFLOP"


def _time_line(forecast: Forecast) -> str:
    if forecast.seconds is None:
        return "time: measured in the first steps"
    cards = f" of {forecast.processes} cards" if forecast.processes > 1 else ""
    supposed = f", if {ASSUMED_UTILISATION:.0%} of the peak{cards or ' of this card'} is reached"
    return f"time: about {duration_text(forecast.seconds)}{supposed if forecast.is_assumed else ''}"


def check(forecast: Forecast, available_memory_bytes: int | None, free_disk_bytes: int | None) -> None:
    """Raise WebtextError where memory or disk plainly does not suffice; None means that nothing tells.

    `available_memory_bytes` is what one process may take. `free_disk_bytes` also counts what checkpoints of this run
    take already, since they are among those of the forecast.
    """
    if available_memory_bytes is not None and _SURELY * forecast.memory_bytes > available_memory_bytes:
        where = "the card" if forecast.device_type == "cuda" else "this machine"
        raise WebtextError(
            f"training needs about {size_text(forecast.memory_bytes)} of memory"
            f"{' in each process' if forecast.processes > 1 else ''}, and {where} has "
            f"{size_text(available_memory_bytes)} free for it: {_less_memory(forecast)}"
        )
    if free_disk_bytes is not None and forecast.disk_bytes > free_disk_bytes:
        raise WebtextError(
            f"the checkpoints and the weights take {size_text(forecast.disk_bytes)}, and {size_text(free_disk_bytes)} "
            f"are free at the output: free some, choose another --output, or a smaller --keep-checkpoints than "
            f"{forecast.keep_checkpoints}"
        )


def _less_memory(forecast: Forecast) -> str:
    if forecast.fixed_bytes > forecast.memory_bytes / 2:
        return "most of it is of the weights and their optimizer; take a smaller --preset, or a larger machine"
    return "take a smaller --set micro_batch=..., --activation-checkpointing, or a smaller --preset"


def size_text(size_bytes: int) -> str:
    """Write a size for people: `1.49 GB`, `33 MB`."""
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {name}"
    return f"{size_bytes / 1e3:.3g} kB"


def duration_text(seconds: float) -> str:
    """Write a time for people: `40 s`, `12 min`, `3.5 h`, `16 days`."""
    for size, name, below in ((1, "s", 120), (60, "min", 120 * 60), (3600, "h", 72 * 3600)):
        if seconds < below:
            return f"{seconds / size:.2g} {name}" if seconds / size < 10 else f"{seconds / size:.0f} {name}"
    return f"{seconds / 86400:.3g} days"
