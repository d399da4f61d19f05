"""`webtext finetune` on a CPU against the Trainer of transformers: examples per second, and peak memory.

    python benchmarks/bench_finetune_trainer.py [--configuration NAME ...] [--rounds N] [--threads N] [--lm-weight W]

The same model of random weights with 50,257 entries, the same examples of random tokens in two classes, and the same
recipe for both, in float32: one epoch, an evaluation and a checkpoint at its end. In each round every trainer runs in
its own process, one after the other. Trainer pads the examples of a batch to the longest one; with `grouped`, its
setting for texts of varying lengths, the batches have examples of similar length. With a weight, the loss of
language modelling is added, which Trainer computes in a method of its own class, from the logits of all tokens.

The speed is the number of examples over the sum of the times of all steps; peak memory is the largest resident memory
of the process. Medians of the rounds are printed, and medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

VOCABULARY, SPECIAL_TOKENS, LABELS = 50_257, 3, 2
CONFIGURATIONS: dict[str, dict[str, int]] = {
    "small": {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 512, "steps": 16},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "steps": 3},
    "test": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 256, "steps": 2},
}
TRAINERS = ("webtext", "trainer", "trainer-grouped")
BATCH, VALIDATION_EXAMPLES, RATE = 32, 64, 6.25e-5
# Tokens of a text: log-normal, and at most half the context of the smallest model but its special tokens.
MEDIAN_TOKENS, SPREAD, MAX_TOKENS = 32, 0.6, 126
BAR = 1.2


class Run(NamedTuple):
    """What one trainer in one process needed."""

    examples_per_second: float
    peak_mb: float


def main() -> None:
    """Print a table per configuration, or the seconds of the steps of Trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--configuration", nargs="+", choices=CONFIGURATIONS, default=["small"])
    parser.add_argument("--lm-weight", type=float, default=0.0)
    parser.add_argument("--only", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument(
        "--flag", action="append", default=[], help="for webtext finetune, as --flag=--set=micro_batch=8"
    )
    parser.add_argument("--trainer", choices=TRAINERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer:
        torch.set_num_threads(options.threads)
        grouped = options.trainer == "trainer-grouped"
        print(json.dumps(trainer_times(options.folder, grouped, options.lm_weight)))
        return
    print(f"torch {torch.__version__}, {options.threads} threads of {os.cpu_count()} cores; ", end="")
    print(f"load {os.getloadavg()[0]:.1f}; lm_weight {options.lm_weight}")
    for name in options.configuration:
        compare(name, options)


def compare(name: str, options: argparse.Namespace) -> None:
    """Print the speeds and peaks of a configuration, and their ratios."""
    print(f"\n{name}: {', '.join(f'{key} {value:,}' for key, value in CONFIGURATIONS[name].items())}")
    runs: dict[str, list[Run]] = {trainer: [] for trainer in options.only}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_inputs(folder, CONFIGURATIONS[name])
        for number in range(options.rounds):
            # Each round starts with another trainer, so that none always follows the same one.
            shift = number % len(options.only)
            for trainer in options.only[shift:] + options.only[:shift]:
                runs[trainer].append(run_trainer(trainer, folder, number, options))
    for trainer, rounds in runs.items():
        speed, peak = (statistics.median(values) for values in zip(*rounds, strict=True))
        shown = " ".join(f"{run.examples_per_second:.1f}" for run in rounds)
        line = f"{trainer:16} {speed:6.1f} examples/s ({shown}), peak {peak:,.0f} MB"
        if trainer != "webtext" and "webtext" in runs:
            pairs = list(zip(runs["webtext"], rounds, strict=True))
            ratio = statistics.median(own.examples_per_second / other.examples_per_second for own, other in pairs)
            memory = statistics.median(own.peak_mb / other.peak_mb for own, other in pairs)
            verdict = "reached" if ratio >= BAR and memory <= 1 else "MISSED"
            line += f"; webtext is {ratio:.2f} times as fast, with {memory:.2f} times the memory ({verdict})"
        print(line, flush=True)


def write_inputs(folder: Path, sizes: dict[str, int]) -> None:
    """Write a model of transformers with a tokenizer of a word per token, and the files of the task."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {key: value for key, value in sizes.items() if key != "steps"}
    GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **shape)).save_pretrained(folder / "model")
    words = models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    (folder / "random.toml").write_text(f"[finetune]\nlabels = {json.dumps(list(map(str, range(LABELS))))}\n")
    generator = np.random.default_rng(0)
    for name, count in {"train": BATCH * sizes["steps"], "dev": VALIDATION_EXAMPLES}.items():
        lengths = np.exp(generator.normal(np.log(MEDIAN_TOKENS), SPREAD, count)).astype(int).clip(1, MAX_TOKENS)
        rows = [
            {"text": " ".join(f"w{id}" for id in generator.integers(VOCABULARY, size=length)), "label": number % LABELS}
            for number, length in enumerate(lengths)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_trainer(trainer: str, folder: Path, number: int, options: argparse.Namespace) -> Run:
    """Run a trainer in its own process; return its speed and peak memory."""
    output = folder / f"{trainer}-{number}"
    if trainer == "webtext":
        command = [sys.executable, "-m", "webtext_cli", "finetune", "-q", "--model", str(folder / "model"), "-o",
                   str(output), "--task", f"{folder}/random.toml={folder}/train.jsonl,{folder}/dev.jsonl",
                   "--device=cpu", f"--threads={options.threads}", "--set=epochs=1",
                   f"--set=lm_weight={options.lm_weight}", *options.flag]  # fmt: skip
    else:
        command = [sys.executable, __file__, "--trainer", trainer, "--folder", str(folder), "--threads",
                   str(options.threads), "--lm-weight", str(options.lm_weight)]  # fmt: skip
    # webtext lets waiting threads sleep; Trainer would lose by spinning on a shared machine.
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    errors = folder / "errors.txt"
    with errors.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment)
        printed = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}\n{errors.read_text()}")
    if trainer == "webtext":
        rows = [json.loads(line) for line in (output / "timing.jsonl").read_text().splitlines()]
        seconds = [row["seconds"] for row in rows]
    else:
        seconds = json.loads(printed.splitlines()[-1])
    return Run(BATCH * len(seconds) / sum(seconds), usage.ru_maxrss * 1024 / 1e6)


def trainer_times(folder: Path, grouped: bool, lm_weight: float) -> list[float]:
    """Train with Trainer, and return the seconds of its steps, with those for their batches."""
    from transformers import (
        DataCollatorWithPadding,
        GPT2ForSequenceClassification,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    start, extract = VOCABULARY, VOCABULARY + SPECIAL_TOKENS - 1
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "model" / "tokenizer.json"),
        bos_token="<s>",
        sep_token="<d>",
        pad_token="<e>",
    )
    model = GPT2ForSequenceClassification.from_pretrained(
        folder / "model", num_labels=LABELS, pad_token_id=start, use_cache=False
    )
    model.resize_token_embeddings(VOCABULARY + SPECIAL_TOKENS, mean_resizing=False)

    def read(name: str) -> list[dict[str, Any]]:
        rows = map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())
        return [{"input_ids": [start, *tokenizer(row["text"])["input_ids"], extract], "labels": row["label"]}
                for row in rows]  # fmt: skip

    class WithLanguageModel(Trainer):  # type: ignore[misc]
        """L3 = L2 + lm_weight * L1, which is the mean over the tokens of a text, then over the texts."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            labels, mask = inputs.pop("labels"), inputs["attention_mask"]
            hidden = model.transformer(**inputs).last_hidden_state
            ends = mask.sum(1) - 1
            logits = model.score(hidden[torch.arange(len(hidden)), ends])
            targets = inputs["input_ids"][:, 1:].masked_fill(mask[:, 1:] == 0, -100)
            tokens = hidden[:, :-1] @ model.transformer.wte.weight.T
            losses = torch.nn.functional.cross_entropy(tokens.flatten(0, 1), targets.flatten(), reduction="none")
            language: Tensor = (losses.view(targets.shape).sum(1) / ends).mean()
            loss = torch.nn.functional.cross_entropy(logits, labels) + lm_weight * language
            return (loss, {"logits": logits}) if return_outputs else loss

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    arguments = TrainingArguments(
        output_dir=str(folder / f"output-{os.getpid()}"), num_train_epochs=1, per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH, learning_rate=RATE, lr_scheduler_type="linear", warmup_steps=0.002,
        weight_decay=0.01, max_grad_norm=1.0, eval_strategy="epoch", save_strategy="epoch", logging_strategy="no",
        load_best_model_at_end=True, report_to="none", use_cpu=True, disable_tqdm=True,
        train_sampling_strategy="group_by_length" if grouped else "random",
    )  # fmt: skip
    (WithLanguageModel if lm_weight else Trainer)(
        model=model, args=arguments, train_dataset=read("train"), eval_dataset=read("dev"),
        data_collator=DataCollatorWithPadding(tokenizer), processing_class=tokenizer, callbacks=[Clock()],
    ).train()  # fmt: skip
    return [after - before for before, after in itertools.pairwise(times)]


if __name__ == "__main__":
    main()
