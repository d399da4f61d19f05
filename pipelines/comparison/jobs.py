"""Trains and evaluates one model per corpus and seed: each a task, in folders from which it resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipelines import progress, storage
from pipelines.comparison.config import CompareConfig
from pipelines.engine.executor import LocalExecutor, default_workers, make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import TaskInput
from pipelines.evaluation.stage import evaluate
from pipelines.model.device import gpu_count, reproducible, select_device, use_own_gpu
from pipelines.model.io.averaging import average_checkpoints
from pipelines.model.io.model_folder import CONFIG_FILE
from pipelines.model.training.checkpoint import METRICS_FILE, read_json_lines
from pipelines.model.training.recipe import Recipe, make_recipe, parse_overrides, read_preset
from pipelines.progress import OfTask, show_progress
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain

# Held-out losses of a curve after the first, and checkpoints of a training whose last ones are averaged.
_EVALUATIONS, _CHECKPOINTS = 10, 50


class Job(NamedTuple):
    """A model: the corpus that it is trained on, and the number of its seed."""

    corpus: str
    seed: int

    @property
    def training_seed(self) -> int:
        """The seed of the training.

        It depends on the corpus, too: runs of one corpus under two names must be as independent as those of two.
        """
        return int.from_bytes(hashlib.sha256(f"compare:{self.seed}:{self.corpus}".encode()).digest()[:4], "big")

    def folder(self, kind: str) -> str:
        """Return the folder of the model's training (`models`), evaluation (`evaluate`) or average (`averages`)."""
        return storage.join(kind, self.corpus, f"seed-{self.seed}")


@dataclasses.dataclass(frozen=True)
class JobContext:
    """What all jobs share; `overrides` complete the preset to the recipe, all but the seed."""

    config: CompareConfig
    recipe: Recipe
    overrides: tuple[str, ...]
    tasks: tuple[TaskInput, ...]
    output: str
    threads: int = 0
    overwrite: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that a model is trained on."""
        return self.recipe.steps * self.recipe.batch_tokens


def plan_recipe(config: CompareConfig, preset: str, train_tokens: Mapping[str, int]) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe of all models, and the overrides of the preset from which it follows.

    The steps are those of `config.tokens`, or of the preset, but at most one epoch of the smallest corpus. Parts of the
    schedule that the preset has in steps keep their share of all steps, and the held-out loss is measured ten times,
    unless `config.set` has these values. Raises UsageError for more tokens than the epoch, and for fewer steps than
    checkpoints to average, InputError for a corpus that does not fill a batch.
    """
    given = parse_overrides(config.set)
    shape = make_recipe(preset, config.set)
    batches = {name: (tokens - 1) // shape.context // shape.batch_size for name, tokens in train_tokens.items()}
    smallest = min(batches, key=batches.__getitem__)
    if not (epoch := batches[smallest]):
        raise InputError(
            f"{smallest}: has {train_tokens[smallest]:,} training tokens, fewer than a batch of "
            f"{shape.batch_tokens:,}; use more text, or a smaller --set batch_size=... or --preset"
        )
    steps = min(shape.steps, epoch) if config.tokens is None else config.tokens // shape.batch_tokens
    if not 1 <= steps <= epoch:
        raise UsageError(
            f"--tokens {config.tokens:,}: must be from {shape.batch_tokens:,} (one step) to "
            f"{epoch * shape.batch_tokens:,} (one epoch of the smallest corpus, {smallest})"
        )
    if steps < config.average_last:
        raise UsageError(
            f"--average-last {config.average_last}: exceeds the {steps} steps of a training; use more --tokens"
        )
    scaled = {
        key: min(steps - 1, max(1, round(choice.value * steps / shape.steps))) if choice.value else 0
        for key, choice in read_preset(preset).items()
        if key.endswith("_steps")
    }
    scaled["eval_every"] = max(1, steps // _EVALUATIONS)
    changed = [f"{key}={value}" for key, value in scaled.items() if key not in given]
    overrides = (*config.set, f"steps={steps}", *changed)
    return make_recipe(preset, overrides), overrides


def run_jobs(jobs: Sequence[Job], context: JobContext, options: RunOptions) -> None:
    """Train and evaluate all models, as far as that is not done; each GPU of this machine has one model at a time.

    Raises ChangedRunError for a model that was trained by another recipe, which is not extended.
    """
    recipe = context.recipe.to_json()
    for job in () if options.overwrite else jobs:
        path = storage.join(context.output, job.folder("models"), CONFIG_FILE)
        trained = storage.read_json(path)["recipe"] if storage.exists(path) else {}
        for name, value in trained.items():
            if name != "seed" and value != (new := recipe.get(name)):
                raise ChangedRunError(
                    f"{path}: the model was trained by another recipe ({name} was {value}, is now {new}); use "
                    "--overwrite to train it again, or choose another --output to keep both"
                )
    at_once, threads, gpus = parallel_jobs(context.config, options, len(jobs))
    executor = make_executor(at_once) if isinstance(options.executor, LocalExecutor) else options.executor
    running = executor.map(
        run_job,
        jobs,
        context=dataclasses.replace(context, threads=threads, overwrite=options.overwrite),
        on_progress=options.progress.advance,
        name=lambda job: job.folder("models"),
        gpus=gpus,
    )
    total = len(jobs) * context.tokens
    with show_progress(options.progress, "compare: models", total, "tokens"), contextlib.closing(running):
        for _ in running:
            pass


def parallel_jobs(config: CompareConfig, options: RunOptions, jobs: int) -> tuple[int, int, int]:
    """Return how many models are trained at once, and the threads (0: torch's choice) and GPUs of each.

    On this machine, that is one per GPU; without one, the models share the cores.
    """
    uses_gpus = config.device in ("auto", "cuda")
    workers, here = min(options.executor.workers, jobs), gpu_count() if uses_gpus else 0
    if here and isinstance(options.executor, LocalExecutor):
        workers = min(workers, here)
    return workers, 0 if here else max(1, default_workers() // workers), int(uses_gpus)


def run_job(job: Job, context: JobContext) -> None:
    """Train a model and evaluate it; both resume, and what is complete is verified.

    Changed texts and tasks are evaluated again, which is quick compared with the training.
    """
    config, recipe = context.config, context.recipe
    use_own_gpu()
    reported = OfTask(context.tokens)
    options = RunOptions(overwrite=context.overwrite, progress=reported)
    average = config.average_last
    training = PretrainConfig(
        preset=recipe.preset,
        set=context.overrides,
        seed=job.training_seed,
        device=config.device,
        threads=context.threads,
        checkpoint_every=max(1, recipe.steps // (_CHECKPOINTS if average else _EVALUATIONS)),
        keep_checkpoints=max(1, average),
        log_every=0,
    )
    model = storage.join(context.output, job.folder("models"))
    tokens = storage.join(context.output, "tokens", job.corpus)
    pretrain(training, tokens=tokens, output=model, options=options)
    if average:
        averaged = storage.join(context.output, job.folder("averages"))
        average_checkpoints(model, average, averaged)
        model = averaged
    options = RunOptions(overwrite=True, progress=progress.Silent())
    with reproducible(select_device(config.device), context.threads):
        evaluate(
            EvaluateConfig(limit=config.limit, device=config.device),
            tasks=context.tasks,
            model=model,
            output=storage.join(context.output, job.folder("evaluate")),
            options=options,
        )
    reported.complete()


def read_curve(folder: str) -> list[list[float]]:
    """Return the steps of a training at which the held-out bits per byte were measured, and these.

    Without the last ones if they are of all held-out tokens, and those before of a sample, which has another mean.
    """
    name, size = "held_out_bits_per_byte", "held_out_tokens"
    rows = [row for row in read_json_lines(storage.join(folder, METRICS_FILE)) if name in row]
    return [[row["step"], row[name]] for row in rows if row[size] == rows[0][size]]
