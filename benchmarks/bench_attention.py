"""Locally banded against full attention by length, on a CPU: attention alone, and training steps of two layers.

    python benchmarks/bench_attention.py [--lengths N ...] [--window N] [--rounds N] [--threads N]

The shapes are those of `gpt3-125m`: width 768, 12 heads; one sequence. Times are CPU seconds, the least of the rounds,
because other programs run on the same cores; each round times every method once. A model of two layers has a full and
a banded one, as in `attention = "alternating"`, or two full ones; its vocabulary is small, so that its output costs
little.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from pipelines.model.diagnostics.estimate import flops_per_token
from pipelines.model.network.banded import banded_attention
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize, next_token_loss

WIDTH, HEADS, LAYERS, VOCAB_SIZE = 768, 12, 2, 1000


def main() -> None:
    """Print a row per length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 300, 512, 1024, 2048, 4096])
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, window {options.window}\n")
    print("| tokens | full, ms | mask, ms | chunks, ms | with gradients: full | mask | chunks | step: full | ", end="")
    print("alternating | ratio | FLOPs ratio |")
    print("|" + "---|" * 11)
    for tokens in options.lengths:
        print(row(tokens, options.window, options.rounds), flush=True)


def row(tokens: int, window: int, rounds: int) -> str:
    """Time attention, attention with gradients, and a training step; return a row of the table."""
    query, key, value = (torch.randn(1, HEADS, tokens, WIDTH // HEADS, requires_grad=True) for _ in range(3))
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril().triu(1 - window)
    attention: list[Callable[[], Tensor]] = [
        lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        lambda: F.scaled_dot_product_attention(query, key, value, visible),
        lambda: banded_attention(query, key, value, window),
    ]
    ids = torch.randint(0, VOCAB_SIZE, (1, tokens + 1))
    models = [model(tokens, 0), model(tokens, window)]
    steps: list[Callable[[], Tensor]] = [functools.partial(next_token_loss, model, ids) for model in models]
    methods: list[Callable[[], object]] = [
        *(torch.no_grad()(method) for method in attention),
        *(functools.partial(backward, method) for method in (*attention, *steps)),
    ]
    best = [min(times) for times in zip(*([cpu_ms(method) for method in methods] for _ in range(rounds)), strict=True)]
    full, alternating = (
        flops_per_token(sum(weight.numel() for weight in model.parameters()), LAYERS, WIDTH, tokens, model_window)
        for model, model_window in zip(models, (0, window), strict=True)
    )
    cells = [
        f"{tokens:,}",
        *(f"{value:,.1f}" for value in best),
        f"{best[7] / best[6]:.2f}",
        f"{alternating / full:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def model(tokens: int, window: int) -> GPT2:
    """Return a model with random weights."""
    result = empty_model(Architecture(LAYERS, WIDTH, HEADS, tokens, VOCAB_SIZE, attention_window=window))
    initialize(result, 0)
    return result


def backward(function: Callable[[], Tensor]) -> None:
    """Compute the gradients of the sum of what a function returns."""
    torch.autograd.backward(function().sum())


def cpu_ms(method: Callable[[], object]) -> float:
    """Return the CPU time of the second of two calls in milliseconds: the first gets its memory from the system."""
    method()
    started = time.process_time()
    method()
    return (time.process_time() - started) * 1000


if __name__ == "__main__":
    main()
