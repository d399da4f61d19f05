"""Runs tasks on a model. Paper, sections 3.1 to 3.8."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from pipelines import storage
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, WebtextError
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.encoding import Encoder, ModelFacts, hash_config
from pipelines.evaluation.protocols import TaskInput
from pipelines.evaluation.results_page import read_results, step_folders
from pipelines.evaluation.scoring import Scorer
from pipelines.evaluation.task import Task
from pipelines.evaluation.task_run import RESULTS, TOKENIZER, TaskRun
from pipelines.evaluation.tasks import build_task
from pipelines.format import format_bytes
from pipelines.model.device import DeviceConfig, device_config, reproducible, select_device, translate_memory_errors
from pipelines.model.io.model_folder import CONFIG_FILE, open_model
from pipelines.model.training.checkpoint import Checkpoint, find_checkpoints
from pipelines.model.training.parallel import World, process_group, torchrun_world, translate_connection_errors
from pipelines.progress import Progress
from pipelines.reports.evaluation import model_title

# Of the free memory; less is not worth a line.
_NOTED_SHARE = 4
_MEMORY_ADVICE = "use --device cpu, or a machine with more memory"


def evaluate(
    config: EvaluateConfig,
    *,
    tasks: Sequence[TaskInput],
    model: str,
    output: str,
    options: RunOptions,
    device: str = "auto",
    checkpoint: Checkpoint | None = None,
) -> list[dict[str, Any]]:
    """Run tasks on a model, or on a checkpoint of its training, and return their results, as in `results.json`.

    Every task has a folder in `output`, so that further tasks can be added. Raises UsageError, before anything is
    computed, for options of a task, and InputError for a file that has another form. Processes that torchrun starts
    share the work; all but rank 0 return nothing.
    """
    trained = open_model(model, checkpoint=checkpoint)
    trained.tokenizer()  # raises if its vocabulary does not fit
    facts = ModelFacts.of(trained)
    encoder = Encoder(trained.tokenizer_json, facts)
    built = [build_task(task, encoder, config.limit) for task in tasks]
    world = torchrun_world()
    where = device_config(select_device(device, world.local_rank), config.precision)
    # Results of a CPU are not gone on with in another precision.
    config = dataclasses.replace(config, precision="bf16" if where.bf16 else "float32")
    options.progress.note(f"evaluate: {model_title(vars(facts))}, on {where.name}, {config.precision}")
    with (
        translate_memory_errors(_MEMORY_ADVICE),
        translate_connection_errors(world),
        reproducible(where.device),
        process_group(world, where.device),
    ):
        scorer = Scorer(trained.model.to(where.device), where)
        _check_memory(scorer, built, where, options.progress, world.local_size)
        runs = [
            TaskRun(config, task, function, facts, trained.tokenizer_json, encoder, scorer, world)
            for task, function in zip(tasks, built, strict=True)
        ]
        # Reads all files before the first computation, so that a bad one is known at once.
        plans = [run.chunks() for run in runs]
        if not world.is_rank_zero:
            for run, plan in zip(runs, plans, strict=True):
                run.run_worker_rank(plan)
            return []
        return [
            run.run(storage.join(output, run.task.label), options, plan) for run, plan in zip(runs, plans, strict=True)
        ]


def evaluate_checkpoints(
    config: EvaluateConfig, *, tasks: Sequence[TaskInput], model: str, output: str, options: RunOptions, device: str
) -> dict[int, list[dict[str, Any]]]:
    """Run tasks on every checkpoint of a training, the finished model last, and return their results by step.

    Every checkpoint has a folder `step-N` in `output`. Raises InputError if there are none.
    """
    checkpoints: dict[int, Checkpoint | None] = {one.step: one for one in find_checkpoints(model)}
    if not checkpoints:
        raise InputError(
            f"{model}: has no checkpoints; name the folder of `webtext pretrain` with --model, or omit --checkpoints"
        )
    config_json = storage.read_json(storage.join(model, CONFIG_FILE))
    if has_manifest(model):  # its weights are those of the last checkpoint, which may be deleted
        checkpoints[config_json["recipe"]["steps"]] = None
    rewritten = {(step, task.label) for step in checkpoints for task in tasks}
    _check_one_training(output, hash_config(config_json), rewritten)
    results, world = {}, torchrun_world()
    with process_group(world, select_device(device, world.local_rank)):  # processes cannot connect a second time
        for step, checkpoint in checkpoints.items():
            arguments: dict[str, Any] = {"tasks": tasks, "options": options, "device": device, "checkpoint": checkpoint}
            results[step] = evaluate(config, model=model, output=storage.join(output, f"step-{step}"), **arguments)
    return results


def _check_one_training(output: str, training: str, rewritten: Collection[tuple[int, str]]) -> None:
    """Raise InputError if results of steps are of another training, and this run does not replace them."""
    for step, folder in step_folders(output).items():
        for label, result in read_results(folder).items():
            if result["model"].get("training") != training and (step, label) not in rewritten:
                raise InputError(
                    f"{storage.join(folder, label)}: has results of another training; choose another --output, or "
                    "delete them"
                )


def _check_memory(scorer: Scorer, tasks: Sequence[Task], where: DeviceConfig, shown: Progress, processes: int) -> None:
    """Say how much memory is needed besides the weights; raise WebtextError if there is less."""
    generations = [task.generation for task in tasks if task.generation]
    needed = scorer.memory_bytes(max((generation.max_tokens for generation in generations), default=0))
    free = where.free_memory_bytes(processes)
    if free is None or needed > free // _NOTED_SHARE:
        shown.note(f"evaluate: needs about {format_bytes(needed)} of memory besides the weights, on {where.name}")
    if free is not None and needed > free:
        raise WebtextError(f"evaluate: needs about {format_bytes(needed)} of memory, {format_bytes(free)} are free")


def rescore(
    config: EvaluateConfig, *, tasks: Sequence[TaskInput], output: str, options: RunOptions
) -> list[dict[str, Any]]:
    """Compute the metrics of tasks again from the answers in `output`, without the model.

    Raises InputError if there are none, or if the prompts are others than those that were answered.
    """
    results = []
    for task in tasks:
        folder = storage.join(output, task.label)
        if not storage.exists(storage.join(folder, RESULTS)):
            raise InputError(f"{folder}: has no results; run the task without --rescore first")
        recorded = storage.read_json(storage.join(folder, RESULTS))
        facts = msgspec.convert(recorded["model"], ModelFacts)
        tokenizer = storage.read_bytes(storage.join(folder, TOKENIZER))
        encoder = Encoder(tokenizer, facts)
        same = dataclasses.replace(config, limit=recorded["limit"], precision=recorded["precision"])
        run = TaskRun(same, task, build_task(task, encoder, same.limit), facts, tokenizer, encoder, None, World())
        results.append(run.run(folder, dataclasses.replace(options, overwrite=True), run.chunks()))
    return results
