"""`webtext pretrain` on a CPU against nanoGPT's training loop and a plain one of transformers: tokens per second.

    python benchmarks/bench_pretrain.py [--rounds N] [--steps N] [--threads N] [--only NAME ...] [--flag=--FLAG ...]

Two small models in float32 with 50,257 entries. In each round every trainer runs in its own process, one after the
other, on the same random tokens with the same batch size; a round's speed is that of its median step after the first
ones (which compile). Medians of the rounds are printed, and medians of the ratios within a round. `--flag` passes an
option to `webtext pretrain`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from nanogpt_training import Sizes, get_batch, train_steps
from token_shards import write_tokens

CONFIGURATIONS = {
    "tiny": Sizes(layers=4, width=128, heads=4, context=128, vocab_size=50_257, batch_size=16),
    "small": Sizes(layers=6, width=384, heads=6, context=256, vocab_size=50_257, batch_size=4),
    "test": Sizes(layers=1, width=16, heads=2, context=16, vocab_size=300, batch_size=2),
}
TRAINERS = ("webtext", "nanogpt", "nanogpt-compiled", "transformers")
BARS = {"nanogpt": 1.0, "nanogpt-compiled": 1.0, "transformers": 1.15}
SKIPPED_STEPS = 5


def main() -> None:
    """Print a table per configuration, or the seconds per step of one trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help=f"measured steps, after the first {SKIPPED_STEPS}")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--configuration", nargs="+", choices=CONFIGURATIONS, default=["tiny", "small"])
    parser.add_argument("--only", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--flag", action="append", default=[], help="for webtext pretrain, as --flag=--threads=1")
    parser.add_argument("--trainer", choices=TRAINERS, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer:
        sizes = CONFIGURATIONS[options.configuration[0]]
        steps = options.steps + SKIPPED_STEPS
        print(json.dumps(measure_steps(options.trainer, options.tokens, sizes, steps, options.threads)))
        return
    print(f"torch {torch.__version__}, {options.threads} threads of {os.cpu_count()} cores; ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
    for name in options.configuration:
        compare(name, options)


def compare(name: str, options: argparse.Namespace) -> None:
    """Print the speeds of a configuration, and how many times as fast webtext is."""
    sizes = CONFIGURATIONS[name]
    print(f"\n{name}: {', '.join(f'{key} {value:,}' for key, value in dataclasses.asdict(sizes).items())}; float32")
    speeds: dict[str, list[float]] = {trainer: [] for trainer in options.only}
    with tempfile.TemporaryDirectory() as folder:
        tokens = write_tokens(f"{folder}/tokens", max(200_000, 100 * sizes.context), 0, sizes.vocab_size)
        for number in range(options.rounds):
            # Each round starts with another trainer, so that none always follows the same one.
            shift = number % len(options.only)
            for trainer in options.only[shift:] + options.only[:shift]:
                seconds = run_trainer(trainer, name, tokens, f"{folder}/{trainer}-{number}", options)
                speeds[trainer].append(sizes.batch_size * sizes.context / statistics.median(seconds))
    for trainer, rounds in speeds.items():
        line = (
            f"{trainer:17} {statistics.median(rounds):8,.0f} tokens/s ({' '.join(f'{speed:,.0f}' for speed in rounds)})"
        )
        if trainer in BARS and "webtext" in speeds:
            ratios = [own / other for own, other in zip(speeds["webtext"], rounds, strict=True)]
            ratio = statistics.median(ratios)
            verdict = "reached" if ratio >= BARS[trainer] else "MISSED"
            line += f"; webtext is {ratio:.2f} times as fast (bar {BARS[trainer]}: {verdict})"
        print(line)


def run_trainer(trainer: str, name: str, tokens: str, output: str, options: argparse.Namespace) -> list[float]:
    """Run a trainer in its own process; return the seconds of its measured steps."""
    if trainer == "webtext":
        return webtext_times(CONFIGURATIONS[name], tokens, output, options)[SKIPPED_STEPS:]
    command = [sys.executable, __file__, "--trainer", trainer, "--configuration", name, "--tokens", tokens]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    seconds: list[float] = json.loads(run(command, options.threads).splitlines()[-1])
    return seconds[SKIPPED_STEPS:]


def webtext_times(sizes: Sizes, tokens: str, output: str, options: argparse.Namespace) -> list[float]:
    """Return the seconds of the steps of `webtext pretrain`, from its timing.jsonl."""
    steps = options.steps + SKIPPED_STEPS
    values = {**dataclasses.asdict(sizes), "micro_batch": sizes.batch_size, "steps": steps, "warmup_steps": 2}
    values |= {"dropout": 0.0, "grad_clip": 1.0, "eval_every": steps}
    del values["vocab_size"]
    command = [sys.executable, "-m", "webtext_cli", "pretrain", "-q", "-i", tokens, "-o", output, "--preset", "tiny"]
    command += ["--device", "cpu", "--threads", str(options.threads), "--checkpoint-every", str(steps)]
    command += [f"--set={key}={value}" for key, value in values.items()]
    run([*command, *options.flag], options.threads)
    rows = [json.loads(line) for line in (Path(output) / "timing.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows]


def run(command: list[str], threads: int) -> str:
    """Run a command with `threads` threads; return its output, or exit with its error."""
    # `webtext pretrain` lets waiting threads sleep; the others would lose by spinning on a shared machine.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stderr}")
    return ran.stdout


def measure_steps(trainer: str, tokens: str, sizes: Sizes, steps: int, threads: int) -> list[float]:
    """Return the seconds of the steps of another trainer."""
    torch.set_num_threads(threads)
    torch.manual_seed(1337)
    path = str(Path(tokens) / "train-00000.bin")
    if trainer == "transformers":
        losses = transformers_steps(path, sizes)
    else:
        losses = train_steps(path, sizes, compiled=trainer == "nanogpt-compiled")
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        next(losses)
        seconds.append(time.perf_counter() - started)
    return seconds


def transformers_steps(path: str, sizes: Sizes) -> Iterator[float]:
    """Train transformers' GPT-2 in a plain loop, without dropout; yield the loss of each step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=sizes.vocab_size, n_positions=sizes.context, n_embd=sizes.width, n_layer=sizes.layers,
        n_head=sizes.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        bos_token_id=sizes.vocab_size - 1, eos_token_id=sizes.vocab_size - 1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    while True:
        x, _ = get_batch(path, sizes)
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    main()
