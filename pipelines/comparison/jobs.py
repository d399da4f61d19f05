"""Trains and evaluates one model per corpus and seed: each a task, in folders from which it resumes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipelines import progress, storage
from pipelines.comparison.config import CompareConfig
from pipelines.engine.executor import LocalExecutor, default_workers, make_executor
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions, Stage, TaskResult, stage_run
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import TaskInput
from pipelines.evaluation.stage import evaluate
from pipelines.model.device import gpu_count, reproducible, select_device, use_own_gpu
from pipelines.model.io.averaging import average_checkpoints
from pipelines.model.training.checkpoint import METRICS_FILE, read_json_lines
from pipelines.model.training.recipe import Recipe, make_recipe, parse_overrides, read_preset
from pipelines.progress import OfTask
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain

STAGE = Stage("compare", 1)
# Held-out losses of a curve after the first, and checkpoints of a training whose last ones are averaged.
_EVALUATIONS, _CHECKPOINTS = 10, 50


class Job(NamedTuple):
    """A model: the corpus that it is trained on, and the number of its seed."""

    corpus: str
    seed: int

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"{self.corpus}-seed-{self.seed}"

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

    def is_complete(self, job: Job) -> bool:
        """Return whether a model has the results of all tasks."""
        folder = storage.join(self.output, job.folder("evaluate"))
        return all(has_manifest(storage.join(folder, task.label)) for task in self.tasks)


def plan_recipe(config: CompareConfig, preset: str, train_tokens: Mapping[str, int]) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe of all models, and the overrides of the preset from which it follows.

    The steps are those of `config.tokens`, or of the preset, but at most one epoch of the smallest corpus. Parts of the
    schedule that the preset has in steps keep their share of all steps, and the held-out loss is measured ten times,
    unless `config.set` has these values. Raises UsageError for more tokens than the epoch, InputError for a corpus that
    does not fill a batch.
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
    scaled = {
        key: min(steps - 1, max(1, round(choice.value * steps / shape.steps))) if choice.value else 0
        for key, choice in read_preset(preset).items()
        if key.endswith("_steps")
    }
    scaled["eval_every"] = max(1, steps // _EVALUATIONS)
    changed = [f"{key}={value}" for key, value in scaled.items() if key not in given]
    overrides = (*config.set, f"steps={steps}", *changed)
    return make_recipe(preset, overrides), overrides


def run_jobs(jobs: Sequence[Job], context: JobContext, inputs: Mapping[str, str], options: RunOptions) -> None:
    """Train and evaluate all models, as far as that is not done.

    `inputs` are the fingerprints of what they read. Each GPU of this machine has one model at a time.
    """
    at_once, threads, gpus = parallel_jobs(context.config, options, len(jobs))
    context = dataclasses.replace(context, threads=threads, overwrite=options.overwrite)
    # What is trained and evaluated is decided by the folders of the models: one more seed adds to them.
    options = dataclasses.replace(options, overwrite=True)
    if isinstance(options.executor, LocalExecutor):
        options = dataclasses.replace(options, executor=make_executor(at_once))
    reopen = not all(map(context.is_complete, jobs))
    output = storage.join(context.output, "jobs")
    with stage_run(STAGE, context.config, inputs=inputs, output=output, options=options, reopen=reopen) as run:
        if not run.finished:
            run.map(
                run_job,
                jobs,
                context,
                phase="models",
                unit="tokens",
                cost=lambda _: context.tokens,
                is_current=context.is_complete,
                gpus=gpus,
            )
        run.finish()


def parallel_jobs(config: CompareConfig, options: RunOptions, jobs: int) -> tuple[int, int, int]:
    """Return how many models are trained at once, and the threads (0: torch's choice) and GPUs of each.

    On this machine, that is one per GPU; without one, the models share the cores.
    """
    workers = min(options.executor.workers, jobs)
    if config.device not in ("auto", "cuda"):
        return workers, max(1, default_workers() // workers), 0
    here = gpu_count()
    is_local = isinstance(options.executor, LocalExecutor)
    at_once = min(workers, here) if here and is_local else workers
    return at_once, 0 if here else max(1, default_workers() // workers), 1


def run_job(job: Job, context: JobContext) -> TaskResult:
    """Train a model and evaluate it; both resume, and what is complete is verified."""
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
    options = dataclasses.replace(options, progress=progress.Silent())
    with reproducible(select_device(config.device), context.threads):
        evaluate(
            EvaluateConfig(limit=config.limit, device=config.device),
            tasks=context.tasks,
            model=model,
            output=storage.join(context.output, job.folder("evaluate")),
            options=options,
        )
    reported.complete()
    return TaskResult(1, 1, counts={"tokens": context.tokens})


def read_curve(folder: str) -> list[list[float]]:
    """Return the steps of a training at which the held-out bits per byte were measured, and these.

    Without the last ones if they are of all held-out tokens, and those before of a sample, which has another mean.
    """
    name, size = "held_out_bits_per_byte", "held_out_tokens"
    rows = [row for row in read_json_lines(storage.join(folder, METRICS_FILE)) if name in row]
    return [[row["step"], row[name]] for row in rows if row[size] == rows[0][size]]
