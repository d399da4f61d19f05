"""`webtext pretrain` on one CUDA GPU: tokens per second, MFU and memory of the smallest and the largest GPT-2.

    python benchmarks/bench_pretrain_gpu.py [--minutes 9.5] [--only gpt2] [--steps 60] [--seconds 25] [--dry-run]

Each case trains in its own process on random tokens, with the trainer of the command, for a number of steps or of
seconds after its first step; its speed is that of the second half of its steps. Cases that do not fit into the minutes
are listed as not run. `--dry-run` does the same with tiny models on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch
from token_shards import write_tokens

from pipelines.engine.run import RunOptions
from pipelines.format import format_percent
from pipelines.model.diagnostics.estimate import flops_per_token, utilization
from pipelines.model.training.recipe import make_recipe, parameter_count
from pipelines.progress import Silent
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain

VOCAB_SIZE = 50_257
_DRY_VOCAB_SIZE = 300
_MIN_STEPS = 8
_TOKENS = 4_000_000
_GB = 1e9


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table."""

    preset: str
    micro_batch: int
    batch_size: int
    dropout: float = 0.0
    compiled: bool = True
    activation_checkpointing: bool = False
    smaller: tuple[str, ...] = ()

    def config(self, device: str) -> PretrainConfig:
        """Return the options of `webtext pretrain`: no checkpoint, more steps than there is time for."""
        values = (f"batch_size={self.batch_size}", f"micro_batch={self.micro_batch}", f"dropout={self.dropout}")
        return PretrainConfig(
            preset=self.preset,
            set=(*values, "steps=1000000", "eval_every=1000000", *self.smaller),
            device=device,
            checkpoint_every=1_000_000,
            keep_checkpoints=1,
            compile="on" if self.compiled else "off",
            activation_checkpointing=self.activation_checkpointing,
        )


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The result of a case; bytes are peak GPU memory, 0 on a CPU."""

    steps: int
    first_step_s: float
    step_s: float
    tokens_per_second: float
    mfu: float | None
    allocated_bytes: int
    reserved_bytes: int


# The most interesting ones first: there may not be time for all.
CASES = (
    Case("gpt2", 32, 128),
    Case("gpt2-xl", 8, 32),
    Case("gpt2", 64, 128),
    Case("gpt2-xl", 16, 32),
    Case("gpt2", 32, 128, dropout=0.1),
    Case("gpt2-xl", 16, 32, activation_checkpointing=True),
    Case("gpt2", 32, 128, compiled=False),
    Case("gpt2-xl", 8, 32, dropout=0.1),
    Case("gpt2", 16, 128),
    Case("gpt2-xl", 4, 32),
    Case("gpt2-xl", 8, 32, compiled=False),
    Case("gpt2-xl", 32, 32, activation_checkpointing=True),
)
_SMALLER = ("layers=1", "width=32", "heads=2", "context=16", "warmup_steps=2")
DRY_CASES = (
    Case("tiny", 2, 4, compiled=False, smaller=_SMALLER),
    Case("tiny", 4, 4, dropout=0.1, compiled=False, activation_checkpointing=True, smaller=_SMALLER),
)


class Enough(BaseException):
    """Ends the training; neither an error of a task nor a KeyboardInterrupt."""


class Stopwatch(Silent):
    """Records when each step ended; ends the training after so many steps, or seconds after the first."""

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        self.ends = [time.perf_counter()]

    def advance(self, units: int) -> None:
        self.ends.append(time.perf_counter())
        done = len(self.ends) - 1
        late = done >= _MIN_STEPS and self.ends[-1] - self.ends[1] > self._seconds
        if done >= self._steps or late:
            raise Enough

    def step_s(self) -> float:
        """Return the mean seconds per step over the second half of the steps, with all waits between them."""
        half = len(self.ends) // 2
        return (self.ends[-1] - self.ends[half]) / (len(self.ends) - 1 - half)


def main() -> None:
    """Print the table, or the result of one case."""
    options = parse()
    if options.case:
        values = json.loads(options.case)
        case = Case(**{**values, "smaller": tuple(values["smaller"])})
        print(json.dumps(dataclasses.asdict(measure(case, options))))
        return
    if not options.dry_run and not torch.cuda.is_available():
        print("skipped: torch finds no CUDA GPU; use --dry-run to run the script on a CPU")
        return
    cases = [case for case in (DRY_CASES if options.dry_run else CASES) if options.only in (None, case.preset)]
    with tempfile.TemporaryDirectory() as folder:
        count, vocab_size = (100_000, _DRY_VOCAB_SIZE) if options.dry_run else (_TOKENS, VOCAB_SIZE)
        options.tokens = write_tokens(f"{folder}/tokens", count, 0, vocab_size)
        print_table(cases, options)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit for all cases together")
    parser.add_argument("--only", choices=("gpt2", "gpt2-xl"), help="run only the cases of one model")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=25.0, help="time limit per case, after its first step")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    return parser.parse_args()


def print_table(cases: Sequence[Case], options: argparse.Namespace) -> None:
    """Run the cases while there is time; print each as soon as it is done."""
    print(f"{device_name(options)}, torch {torch.__version__}, CUDA {torch.version.cuda}; bfloat16 on a GPU\n")
    print(
        "| model | micro-batch | batch | dropout | compiled | checkpointing | tokens/s | MFU | step, ms |",
        end="",
    )
    print(" peak GB: allocated | reserved | first step, s | steps |\n|" + "---|" * 13)
    until = time.perf_counter() + 60 * options.minutes
    for number, case in enumerate(cases):
        print(row(case, run_case(case, f"{options.tokens}-{number}", until, options)), flush=True)


def row(case: Case, result: Measurement | str) -> str:
    """Return a line of the table."""
    columns = [case.preset, case.micro_batch, case.batch_size, case.dropout]
    columns += ["yes" if flag else "no" for flag in (case.compiled, case.activation_checkpointing)]
    about = "".join(f"| {column} " for column in columns) + "|"
    if isinstance(result, str):
        return f"{about} {result} |" + " |" * 6
    memory = f"{result.allocated_bytes / _GB:.1f} | {result.reserved_bytes / _GB:.1f}"
    speed = f"{result.tokens_per_second:,.0f} | {format_percent(result.mfu)} | {1000 * result.step_s:.1f}"
    return f"{about} {speed} | {memory} | {result.first_step_s:.1f} | {result.steps} |"


def run_case(case: Case, output: str, until: float, options: argparse.Namespace) -> Measurement | str:
    """Run a case in its own process; return its result, or why there is none."""
    left = until - time.perf_counter()
    if left < options.seconds:
        return "not run: out of time"
    command = [sys.executable, __file__, "--case", json.dumps(dataclasses.asdict(case)), "--steps", str(options.steps)]
    command += ["--seconds", str(options.seconds), "--tokens", options.tokens, "--output", output]
    if options.dry_run:
        command.append("--dry-run")
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        return "not finished: out of time"
    if ran.returncode:
        print(ran.stderr[-3000:], file=sys.stderr)
        lines = ran.stderr.strip().splitlines() or [f"ended by signal {-ran.returncode}"]
        return f"failed: {lines[-1][:120]}"
    return Measurement(**json.loads(ran.stdout.splitlines()[-1]))


def measure(case: Case, options: argparse.Namespace) -> Measurement:
    """Train until the stopwatch ends it."""
    watch = Stopwatch(options.steps, options.seconds)
    config = case.config("cpu" if options.dry_run else "cuda")
    with contextlib.suppress(Enough):
        pretrain(config, tokens=options.tokens, output=options.output, options=RunOptions(progress=watch))
    recipe = make_recipe(config.preset, config.set, config.seed)
    cuda = not options.dry_run
    speed = recipe.batch_tokens / watch.step_s()
    parameters = parameter_count(recipe, _DRY_VOCAB_SIZE if options.dry_run else VOCAB_SIZE)
    flops = flops_per_token(parameters, recipe.layers, recipe.width, recipe.context)
    return Measurement(
        steps=len(watch.ends) - 1,
        first_step_s=watch.ends[1] - watch.ends[0],
        step_s=watch.step_s(),
        tokens_per_second=speed,
        mfu=utilization(speed, flops, device_name(options), 1),
        allocated_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        reserved_bytes=torch.cuda.max_memory_reserved() if cuda else 0,
    )


def device_name(options: argparse.Namespace) -> str:
    """Return torch's name of the GPU."""
    return "dry run on the CPU" if options.dry_run else torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
