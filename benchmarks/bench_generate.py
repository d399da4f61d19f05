"""`webtext generate` against drawing without keys and values kept, and against transformers: tokens a second on a CPU.

    python benchmarks/bench_generate.py [--rounds N] [--tokens N] [--threads N] [--sizes NAME ...]

GPT-2s with random weights, from a prompt of one token, top-k 40. In each round every way is timed once, one after the
other, in one process; printed are the medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import next_tokens, sample_tokens
from pipelines.model.io.hugging_face import model_config, to_hugging_face
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

SIZES = {
    "tiny": Architecture(layers=4, width=128, heads=4, context=128, vocab_size=50_257),
    "gpt2": Architecture(layers=12, width=768, heads=12, context=1024, vocab_size=50_257),
}
NO_END = -1


def main() -> None:
    """Print tokens a second for each way and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads of {os.cpu_count()} cores, ", end="")
    print(f"{options.tokens} tokens a sample; load {os.getloadavg()[0]:.1f}")
    for name in options.sizes:
        compare(name, options.tokens, options.rounds)


def compare(name: str, tokens: int, rounds: int) -> None:
    """Time every way in each round, and print the medians."""
    model = empty_model(SIZES[name])
    initialize(model, 0)
    model.eval()
    options = SamplingOptions(max_tokens=tokens)
    theirs = transformers_model(model)
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "without a cache": (1, lambda: plain_sample(model, options)),
        "webtext": (1, lambda: sample_tokens(model, [0], options, [0], end_of_text=NO_END)),
        "webtext, 8 samples": (8, lambda: sample_tokens(model, [0], options, range(8), end_of_text=NO_END)),
        "transformers": (1, lambda: theirs(1, tokens)),
        "transformers, 8 samples": (8, lambda: theirs(8, tokens)),
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (samples, draw) in ways.items():
            started = time.perf_counter()
            draw()
            speeds[way].append(samples * tokens / (time.perf_counter() - started))
    for way, found in speeds.items():
        print(f"{name:<6} {way:<24} {statistics.median(found):>9.1f} tokens/s", flush=True)


@torch.no_grad()
def plain_sample(model: GPT2, options: SamplingOptions) -> list[int]:
    """Draw each token from all before it, the likeliest of those that may come (drawing costs nothing beside)."""
    text = [0]
    for _ in range(options.max_tokens):
        logits = model(torch.tensor([text[-model.architecture.context :]]))[0, -1]
        text.append(int(next_tokens(logits.numpy(), options)[0][0]))
    return text


def transformers_model(model: GPT2) -> Callable[[int, int], object]:
    """Return what draws samples with transformers from the same weights."""
    import transformers

    config = transformers.GPT2Config(**model_config(model.architecture, 0))
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    prompt = torch.zeros(1, 1, dtype=torch.long)

    def draw(samples: int, tokens: int) -> object:
        return theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=40, max_new_tokens=tokens,
            min_new_tokens=tokens, num_return_sequences=samples, pad_token_id=0,
        )  # fmt: skip

    return draw


if __name__ == "__main__":
    main()
