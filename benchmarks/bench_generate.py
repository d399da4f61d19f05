"""`webtext generate` against sampling without a key-value cache, and transformers: tokens per second on a CPU.

    python benchmarks/bench_generate.py [--rounds N] [--tokens N] [--threads N] [--sizes NAME ...]

GPT-2 with random weights, a prompt of one token, top-k 40. Each round times every method once, in one process; the
medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from pipelines.model.inference.decoding import next_tokens
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import sample_tokens
from pipelines.model.io.hugging_face import model_config, to_hugging_face
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

SIZES = {
    "tiny": Architecture(layers=4, width=128, heads=4, context=128, vocab_size=50_257),
    "gpt2": Architecture(layers=12, width=768, heads=12, context=1024, vocab_size=50_257),
}
NO_END = -1


def main() -> None:
    """Print tokens per second for each method and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads of {os.cpu_count()} cores, ", end="")
    print(f"{options.tokens} tokens per sample; load {os.getloadavg()[0]:.1f}")
    for name in options.sizes:
        compare(name, options.tokens, options.rounds)


def compare(name: str, tokens: int, rounds: int) -> None:
    """Time every method in each round, and print the medians."""
    model = empty_model(SIZES[name])
    initialize(model, 0)
    model.eval()
    options = SamplingOptions(max_tokens=tokens)
    transformers_draw = transformers_sampler(model)
    methods: dict[str, tuple[int, Callable[[], object]]] = {
        "without a cache": (1, lambda: plain_sample(model, options)),
        "webtext": (1, lambda: sample_tokens(model, [0], options, [0], end_of_text=NO_END)),
        "webtext, 8 samples": (8, lambda: sample_tokens(model, [0], options, range(8), end_of_text=NO_END)),
        "transformers": (1, lambda: transformers_draw(1, tokens)),
        "transformers, 8 samples": (8, lambda: transformers_draw(8, tokens)),
    }
    speeds: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method, (samples, draw) in methods.items():
            started = time.perf_counter()
            draw()
            speeds[method].append(samples * tokens / (time.perf_counter() - started))
    for method, values in speeds.items():
        print(f"{name:<6} {method:<24} {statistics.median(values):>9.1f} tokens/s", flush=True)


@torch.no_grad()
def plain_sample(model: GPT2, options: SamplingOptions) -> list[int]:
    """Compute each token from all earlier ones; always the most likely (sampling takes no measurable time)."""
    text = [0]
    for _ in range(options.max_tokens):
        logits = model(torch.tensor([text[-model.architecture.context :]]))[0, -1]
        text.append(int(next_tokens(logits.numpy(), options)[0][0]))
    return text


def transformers_sampler(model: GPT2) -> Callable[[int, int], object]:
    """Return a function that samples with transformers from the same weights."""
    import transformers

    config = transformers.GPT2Config(**model_config(model.architecture, 0))
    exported = transformers.GPT2LMHeadModel(config).eval()
    exported.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    prompt = torch.zeros(1, 1, dtype=torch.long)

    def draw(samples: int, tokens: int) -> object:
        return exported.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=40, max_new_tokens=tokens,
            min_new_tokens=tokens, num_return_sequences=samples, pad_token_id=0,
        )  # fmt: skip

    return draw


if __name__ == "__main__":
    main()
