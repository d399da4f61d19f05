"""What training costs: FLOPs, and before it starts memory per process and disk.

Memory is derived from the tensors that the backward pass of `gpt2.py` saves, not measured; allocator caches are not
included. Utilization (MFU) is the model's FLOPs by the formula below over the GPU's dense 16-bit peak; recomputation
for activation checkpointing does not count, so the figures of runs with and without it are comparable.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from pipelines import storage
from pipelines.engine.config import Tables, read_toml
from pipelines.engine.machine import check_memory
from pipelines.errors import WebtextError
from pipelines.format import format_bytes, format_rounded
from pipelines.model.network.gpt2 import LOGITS_AT_ONCE
from pipelines.model.training.checkpoint import find_checkpoints
from pipelines.model.training.job import TrainingJob
from pipelines.storage.resources import data_path

MEMORY_ADVICE = "use a smaller --set micro_batch=... or model (pretrain: --preset, --activation-checkpointing)"
_FLOAT_BYTES, _HALF_BYTES = 4, 2
# Saved by a layer for the backward pass, in numbers per token and dimension of the width. Always in 32 bits: the
# residual stream before each of the two norms. In the precision of matrix products: the input of attention (1), query,
# key and value (3), its output (1), the input of the feed-forward layer (1), its middle before and after GELU (8).
_SAVED_FLOATS, _SAVED_PRODUCTS = 2, 14
# Dropout saves two masks per layer and, where attention is not fused (on a CPU with dropout), three squares of context.
_MASKS, _SQUARES = 2, 3
# Chunks of locally banded attention: copies of the query and the output (2), keys and values of two chunks (4). Where
# attention is not fused, it saves scaled copies with chunks or without.
_CHUNK_PRODUCTS, _UNFUSED_CHUNK_PRODUCTS = 6, 2
# Per logit in the backward pass: log-softmax, its gradient and the logit's gradient in 32 bits. Compiled, these are
# fused, and only the logit and its gradient are written, in 16 bits.
_LOGIT_BYTES, _COMPILED_LOGIT_BYTES = 12, 4
# On a CPU, next to LOGITS_AT_ONCE logits in 32 bits, two matrices of the embedding's size hold its gradient.
_EMBEDDING_GRADIENTS = 2
# What libraries allocate when training starts on a CPU, measured with a model of a few weights.
_LIBRARY_BYTES = 90_000_000
# Memory estimates are not exact: refuse only what exceeds the free memory by more than this factor.
_CERTAIN_SHARE = 0.7


def flops_per_token(parameters: int, layers: int, width: int, context: int, window: int = 0) -> int:
    """Return the FLOPs, forward and backward, per training token: 6 N + 12 L d T.

    N is the number of parameters, with the shared embedding once; L layers, d the width, T the context. The second
    term is attention over all pairs of tokens, conventionally without the causal mask, so twice the visible ones; with
    a window also in every second layer, see `_keys_per_token`.
    """
    keys = (layers - layers // 2) * context + layers // 2 * _keys_per_token(context, window)
    return 6 * parameters + 12 * width * keys


def _keys_per_token(context: int, window: int) -> int:
    """Return twice the mean number of visible keys with a window W (0: none): 2 W - W^2 / T, as chunks compute."""
    window = min(window, context) or context
    return 2 * window - window**2 // context


@functools.cache
def peak_flops(device_name: str) -> float | None:
    """Return the dense 16-bit peak in FLOP/s of a GPU, by torch's name for it; None if it is not in `gpus.toml`."""
    gpus = read_toml(data_path("gpus.toml"), Tables).values()
    peaks = (gpu["peak_tflops"] * 1e12 for gpu in gpus if re.fullmatch(gpu["name"], device_name.strip()))
    return next(peaks, None)


def utilization(tokens_per_second: float, token_flops: int, device_name: str, devices: int) -> float | None:
    """Return the share of the GPUs' peak that the model's FLOPs take; None for an unlisted GPU."""
    peak = peak_flops(device_name)
    return None if peak is None else tokens_per_second * token_flops / (peak * devices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The resources of a training run; `memory` is that of one process in bytes, by what it is for.

    `disk_bytes` covers the kept checkpoints, one being written, and the final weights.
    """

    device_type: str
    processes: int
    tokens: int
    memory: dict[str, int]
    checkpoint_bytes: int
    disk_bytes: int
    keep_checkpoints: int
    flops_per_token: int

    @property
    def memory_bytes(self) -> int:
        """Peak memory of one process."""
        return sum(self.memory.values())

    @property
    def flops(self) -> int:
        """FLOPs of the whole run."""
        return self.flops_per_token * self.tokens


def estimate_training(job: TrainingJob) -> Estimate:
    """Estimate the resources of training on `cpu` or `cuda`."""
    size, recipe, processes = job.architecture, job.recipe, job.world.size
    own_parameters = -(-job.parameters // processes) if job.is_sharded else job.parameters
    checkpoint_bytes = 3 * _FLOAT_BYTES * job.parameters  # the weights and Adam's two moments
    sizes = size.layers, size.width, size.context, size.attention_window
    # With a decay in the last steps only, also the one before it.
    kept_checkpoints = job.options.keep_checkpoints + (recipe.branch_step < recipe.steps)
    return Estimate(
        device_type=job.device.device.type,
        processes=processes,
        tokens=sum(map(job.objective.tokens, range(recipe.steps))),
        memory={
            "weights": _FLOAT_BYTES * own_parameters + _weight_copies_bytes(job),
            "gradients": _FLOAT_BYTES * own_parameters,
            "Adam's moments": 2 * _FLOAT_BYTES * own_parameters,
            "activations": _activation_bytes(job),
            "logits": _logits_bytes(job),
            "libraries": _LIBRARY_BYTES if job.device.device.type == "cpu" else 0,
        },
        checkpoint_bytes=checkpoint_bytes,
        disk_bytes=(kept_checkpoints + 1) * checkpoint_bytes + _FLOAT_BYTES * job.parameters,
        keep_checkpoints=kept_checkpoints,
        flops_per_token=flops_per_token(job.parameters, *sizes),
    )


def _weight_copies_bytes(job: TrainingJob) -> int:
    """Return the memory of copies of weights.

    In bfloat16: 16-bit copies of the matrices, which the backward pass needs too. Sharded: two complete layers, one
    being gathered while the other computes, and the embeddings.
    """
    size = job.architecture
    layer, embedding = 12 * size.width**2, size.vocab_size * size.width
    halves = _HALF_BYTES * (size.layers * layer + embedding) if job.device.bf16 else 0
    return halves + (_FLOAT_BYTES * (2 * layer + embedding + size.context * size.width) if job.is_sharded else 0)


def _logits_bytes(job: TrainingJob) -> int:
    """Return the memory for the loss of one micro-batch, which a CPU computes in chunks."""
    size, vocab_size = job.architecture, job.architecture.vocab_size
    logits = job.objective.forward_shape()[0] * vocab_size
    if job.device.device.type == "cpu":
        embedding = vocab_size * size.width
        return _FLOAT_BYTES * (min(logits, max(LOGITS_AT_ONCE, vocab_size)) + _EMBEDDING_GRADIENTS * embedding)
    return (_COMPILED_LOGIT_BYTES if job.is_compiled and not job.is_sharded else _LOGIT_BYTES) * logits


def _activation_bytes(job: TrainingJob) -> int:
    """Return the memory that the forward pass of one micro-batch saves for the backward pass."""
    size, device_type = job.architecture, job.device.device.type
    tokens, context = job.objective.forward_shape()
    stream = tokens * size.width  # the residual stream, in numbers
    product_bytes = _HALF_BYTES if job.device.bf16 else _FLOAT_BYTES
    layer = (_SAVED_FLOATS * _FLOAT_BYTES + _SAVED_PRODUCTS * product_bytes) * stream
    banded, window, is_unfused = layer, size.attention_window, device_type == "cpu" and size.dropout > 0
    if 0 < window < context and (size.dropout or not job.is_compiled or device_type != "cuda"):
        banded += (_UNFUSED_CHUNK_PRODUCTS if is_unfused else _CHUNK_PRODUCTS) * product_bytes * stream
    if size.dropout:
        # A CPU saves masks as floats, a GPU as bytes; fused attention on a GPU saves none.
        masks = _MASKS * (_FLOAT_BYTES if device_type == "cpu" else 1) * stream
        rows = _SQUARES * _FLOAT_BYTES * tokens * size.heads * is_unfused
        layer += masks + rows * context
        banded += masks + rows * _keys_per_token(context, window)
    final_norm = 2 * _FLOAT_BYTES * stream
    if job.options.activation_checkpointing:
        return size.layers * _FLOAT_BYTES * stream + max(layer, banded) + final_norm
    return (size.layers - size.layers // 2) * layer + size.layers // 2 * banded + final_norm


def describe_estimate(estimate: Estimate) -> list[str]:
    """Return the estimate for the terminal: memory, disk and FLOPs."""
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in estimate.memory.items() if size)
    per_process = " per process" if estimate.processes > 1 else ""
    token_flops = estimate.flops_per_token
    flops = f"{token_flops / 1e9:.3g} GFLOPs" if token_flops >= 1e8 else f"{token_flops / 1e6:.3g} MFLOPs"
    return [
        f"peak memory estimate: about {format_bytes(estimate.memory_bytes)}{per_process} ({memory})",
        f"disk: {format_bytes(estimate.disk_bytes)} ({estimate.keep_checkpoints} checkpoints of "
        f"{format_bytes(estimate.checkpoint_bytes)}, one being written, and the final weights)",
        f"compute: {estimate.flops:.2e} FLOPs ({flops} per token, {format_rounded(estimate.tokens)} tokens)",
    ]


def check_estimate(job: TrainingJob) -> None:
    """Show the estimated resources; raise WebtextError if this machine clearly lacks them."""
    estimate = estimate_training(job)
    for line in describe_estimate(estimate):
        job.note(line)
    free_disk = storage.free_bytes(job.output)
    if free_disk is not None:
        free_disk += len(find_checkpoints(job.output)) * estimate.checkpoint_bytes
    check_resources(estimate, job.device.free_memory_bytes(job.world.local_size), free_disk)


def check_resources(estimate: Estimate, available_memory_bytes: int | None, free_disk_bytes: int | None) -> None:
    """Raise WebtextError if memory or disk are clearly insufficient; None means unknown.

    `available_memory_bytes` is that of one process. `free_disk_bytes` includes the existing checkpoints of this run,
    which the estimate counts too.
    """
    needed = estimate.memory_bytes
    if available_memory_bytes is not None and _CERTAIN_SHARE * needed > available_memory_bytes:
        task = "training on the GPU" if estimate.device_type == "cuda" else "training"
        task += " in each process" * (estimate.processes > 1)
        check_memory(task, needed, available_memory_bytes, MEMORY_ADVICE)
    if free_disk_bytes is not None and estimate.disk_bytes > free_disk_bytes:
        raise WebtextError(
            f"checkpoints and weights need {format_bytes(estimate.disk_bytes)}, but the output has "
            f"{format_bytes(free_disk_bytes)} free; free some space, choose another --output, or in `pretrain` "
            f"use a smaller --keep-checkpoints than {estimate.keep_checkpoints}"
        )
