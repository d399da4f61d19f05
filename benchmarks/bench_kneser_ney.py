"""`tiny`, trained for ten minutes, against a 3-gram model with Kneser-Ney smoothing over the same tokens.

    python benchmarks/bench_kneser_ney.py [--data FOLDER] [--minutes 10] [--threads 2] [--vocabulary gpt2 4096 8192]
        [--set key=value ...] [--flag=--FLAG ...] [--count-only]

FOLDER contains `text/docs.jsonl.zst` and `gpt2_vocab/` (default: $WEBTEXT_TEST_DATA). For each vocabulary, GPT-2's own
or one of `webtext train-bpe`, the text is tokenized, the 3-grams of the train split are counted, and both models
predict every held-out token but the first: nats per token, and bits per byte, which are comparable across vocabularies.
The number of steps of `webtext pretrain --preset tiny` follows from the time of the first ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kneser_ney import KneserNey

from pipelines.model.training.data import TokenFolder, open_tokens, token_bytes

_TIMED_STEPS = 60
_EVALUATIONS = 10
# The rest of the time is for held-out losses, checkpoints and startup.
_STEPS_SHARE = 0.88


def main() -> None:
    """Print both losses for each vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("WEBTEXT_TEST_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--minutes", type=float, default=10.0, help="time of `webtext pretrain`")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--vocabulary", nargs="+", default=["gpt2", "4096", "8192"], help="gpt2, or a number of entries"
    )
    parser.add_argument("--set", action="append", default=[], help="override a value of tiny, as key=value")
    parser.add_argument("--flag", action="append", default=[], help="for webtext pretrain, as --flag=--precision=bf16")
    parser.add_argument("--count-only", action="store_true", help="do not train")
    options = parser.parse_args()
    if not (options.data / "text" / "docs.jsonl.zst").exists():
        print(f"skipped: {options.data} does not exist; set the data folder with --data or WEBTEXT_TEST_DATA")
        return
    print(f"{options.threads} threads of {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.vocabulary:
            tokens = open_tokens(tokenize(name, options.data, Path(folder)))
            print(f"\n{name}: {tokens.train.tokens:,} training tokens, {tokens.held_out.tokens:,} held out")
            bar = kneser_ney_loss(tokens)
            if not options.count_only:
                train(tokens, bar, Path(folder) / f"model-{name}", options)


def tokenize(name: str, data: Path, folder: Path) -> str:
    """Tokenize the text with a vocabulary; return the folder."""
    text, tokenizer, tokens = data / "text" / "docs.jsonl.zst", data / "gpt2_vocab", folder / f"tokens-{name}"
    if name != "gpt2":
        tokenizer = folder / f"bpe-{name}"
        webtext("train-bpe", "-i", text, "-o", tokenizer, "--vocab-size", name)
    webtext("tokenize", "-i", text, "-o", tokens, "--tokenizer", tokenizer)
    return str(tokens)


def webtext(*arguments: object) -> None:
    """Run a webtext command; exit with its error if it fails."""
    command = [sys.executable, "-m", "webtext_cli", *map(str, arguments), "-q"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stderr}")


def kneser_ney_loss(tokens: TokenFolder) -> float:
    """Print and return the loss of the 3-gram model."""
    started = time.perf_counter()
    train, held_out = (split.read(0, split.tokens) for split in (tokens.train, tokens.held_out))
    loss = KneserNey.train(train, tokens.vocab_size).loss(held_out)
    seconds = time.perf_counter() - started
    lengths = token_bytes(tokens.tokenizer, tokens.vocab_size)
    assert lengths is not None
    bits = loss * (len(held_out) - 1) / math.log(2) / int(lengths[held_out[1:]].sum())
    print(f"Kneser-Ney, 3-grams: {loss:.4f} nats per token, {bits:.4f} bits per byte; {seconds:.0f} s", flush=True)
    return loss


def train(tokens: TokenFolder, bar: float, output: Path, options: argparse.Namespace) -> None:
    """Print the held-out losses of `tiny`, and whether the last one is below the 3-gram model's."""
    step_s = measure_step_s(tokens.path, Path(f"{output}-timed"), options)
    steps = max(40, int(options.minutes * 60 * _STEPS_SHARE / step_s))
    started = time.perf_counter()
    pretrain(tokens.path, output, steps, max(1, steps // _EVALUATIONS), options)
    minutes = (time.perf_counter() - started) / 60
    rows = read_jsonl(output / "metrics.jsonl")
    recipe = json.loads((output / "config.json").read_text())["recipe"]
    print(f"tiny: {steps:,} steps in {minutes:.1f} minutes, planned with {1000 * step_s:.1f} ms per step:")
    print(f"  {', '.join(f'{key} {value}' for key, value in recipe.items())}")
    for row in rows:
        if "held_out_loss" in row:
            print(f"  step {row['step']:6,}: {row['held_out_loss']:.4f} nats per held-out token")
    last = rows[-1]
    verdict = "BELOW" if last["held_out_loss"] < bar else "NOT below"
    if minutes > options.minutes:
        verdict += f" (in more than the {options.minutes:g} minutes)"
    print(
        f"tiny: {last['held_out_loss']:.4f} nats per token, {last['held_out_bits_per_byte']:.4f} bits per byte, "
        f"over {last['held_out_tokens']:,} tokens: {verdict} Kneser-Ney's {bar:.4f}"
    )


def measure_step_s(tokens: str, output: Path, options: argparse.Namespace) -> float:
    """Return the median seconds per step."""
    pretrain(tokens, output, _TIMED_STEPS, _TIMED_STEPS, options)
    return statistics.median(row["seconds"] for row in read_jsonl(output / "timing.jsonl")[_TIMED_STEPS // 3 :])


def pretrain(tokens: str, output: Path, steps: int, eval_every: int, options: argparse.Namespace) -> None:
    """Train `tiny` for `steps` steps, a twentieth of them warm-up."""
    values = [f"steps={steps}", f"warmup_steps={steps // 20}", f"eval_every={eval_every}", *options.set]
    webtext(
        *("pretrain", "-i", tokens, "-o", output, "--preset", "tiny", "--device", "cpu"),
        *("--threads", options.threads, "--checkpoint-every", eval_every),
        *(f"--set={value}" for value in values),
        *options.flag,
    )


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
