"""Fine-tunes a model on a task, and measures it on the validation set. Radford et al. 2018."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines import storage
from pipelines.engine.config import make_config, places
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, stage_run
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.evaluation.definitions import TaskDefinition
from pipelines.evaluation.stage import checkpoints_by_step
from pipelines.finetuning.config import FineTuneConfig
from pipelines.finetuning.examples import (
    TEST,
    TRAIN,
    VALIDATION,
    Example,
    TransformOptions,
    divide_by_role,
    read_examples,
)
from pipelines.finetuning.objective import FineTuning
from pipelines.finetuning.results import DROPPED, PAGE, PREDICTIONS, RESULTS, measure
from pipelines.model.device import device_config, select_device
from pipelines.model.io.export_classifier import CLASSIFIER
from pipelines.model.io.import_weights import ImportedModel, import_weights
from pipelines.model.io.model_folder import CONFIG_FILE
from pipelines.model.io.tensor_files import read_tensors
from pipelines.model.network.classifier import SPECIAL_TOKENS, initial_weights, transfer_weights
from pipelines.model.training.checkpoint import Checkpoint, latest_checkpoint
from pipelines.model.training.finetune_recipe import FineTuneRecipe, describe_values, make_finetune_recipe
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.objective import evaluation_work
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import TrainingOptions
from pipelines.model.training.trainer import train
from pipelines.records import inputs
from pipelines.records.drops import Drops
from pipelines.reports.finetuning import render_sweep_page
from pipelines.tokenizers.formats import load_tokenizer

STAGE = Stage(
    "finetune",
    2,
    (
        *("model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "timing.jsonl", "training.html"),
        *("best.json", "checkpoints/", "spikes/", f"{PREDICTIONS}/", RESULTS, DROPPED, PAGE),
    ),
    is_expensive=True,
)


def finetune(
    config: FineTuneConfig, *, task: TaskDefinition, files: Sequence[str], validation: Sequence[str] = (),
    test: Sequence[str] = (), model: str, output: str, options: RunOptions, initial: Checkpoint | None = None,
) -> Summary:  # fmt: skip
    """Fine-tune a model on a task, or resume from the latest checkpoint in `output`.

    Without `validation` files, the names of `files` say which are for training, for validation and for testing, of
    which only predictions are written. `model` is a folder of pretrain, export or transformers; `initial` selects a
    checkpoint of the former. Records are the examples for training and validation. Raises UsageError for wrong options
    and a task without a table `[finetune]`, InputError for files without usable examples, and WebtextError if the loss
    is not finite.
    """
    transform = _transform_options(task)
    roles = {TRAIN: files, VALIDATION: validation, TEST: ()} if validation else divide_by_role(files)
    roles[TEST] = [*roles[TEST], *test]
    paths = Counter(storage.real_path(path) for group in roles.values() for path in group)
    if repeated := next((path for path, times in paths.items() if times > 1), None):
        raise UsageError(f"{repeated}: is used twice, such as for training and validation; name every file once")
    for role, advice in {TRAIN: "add them", VALIDATION: "name them with --validation"}.items():
        if not roles[role]:
            raise UsageError(f"--task {task.name}: no files for {role}; {advice}")
    imported = _import_checkpoint(model, initial) if initial else import_weights(model)
    transfer, layers = -1 if config.from_scratch else config.transfer, imported.architecture.layers
    for name, number in {"transfer": transfer, "freeze": config.freeze}.items():
        if number is not None and number > layers:
            raise UsageError(f"--{name} {number}: the model has {layers} layers")
    examples, drops, dropped = _read_examples(transform, roles, imported)
    counts = {role: len(group) for role, group in examples.items()}
    recipe = make_finetune_recipe(
        config.set, seed=config.seed, examples=counts[TRAIN], transfer=transfer, freeze=config.freeze
    )
    fingerprints = {
        "model": imported.sha256,
        "task": repr(dataclasses.astuple(transform)),
        **{role: inputs.fingerprint_files(roles[role]) for role in examples},
    }
    about = {
        "task": task.name,
        "finetune": dataclasses.asdict(task)["finetune"],
        "recipe": describe_values(config.set, recipe),
        "model": {"path": imported.path, "source": imported.source, "sha256": imported.sha256},
        "examples": counts,
        "dropped": dict(drops.counts),
        "published": dataclasses.asdict(task)["published"],
    }
    with stage_run(STAGE, recipe, inputs=fingerprints, output=output, options=options) as run:
        if not run.finished:
            run.note(f"{task.name}: {counts[TRAIN]:,} examples for training, {counts[VALIDATION]:,} for validation")
            job, objective = _make_job(config, recipe, task, transform, examples, imported, run)
            checkpoint = latest_checkpoint(run.output, run.note)
            step = checkpoint.step if checkpoint else 0
            work = sum(map(objective.tokens, range(step, recipe.steps))) + evaluation_work(job, step)
            # An example counts once, not in every epoch.
            run.once(
                "train", lambda: dataclasses.replace(train(job, checkpoint), records_in=0, records_out=0),
                total=work, unit="tokens",
            )  # fmt: skip
            kept, test_set = counts[TRAIN] + counts[VALIDATION], examples.get(TEST, [])
            run.once(
                "results",
                lambda: drops.task_result(kept, *measure(job, objective, about, dropped, roles[VALIDATION], test_set)),
                unit="tokens",
            )
        return run.finish()


def finetune_sweep(
    config: FineTuneConfig, *, task: TaskDefinition, model: str, output: str, options: RunOptions,
    checkpoints: bool = False, **files: Any,
) -> list[Summary]:  # fmt: skip
    """Fine-tune with every seed, and from all `checkpoints` of the model, a folder of pretrain.

    Of several runs, each has a folder `step-N`, `seed-N` or `step-N/seed-N`, next to `results.json` and a page of all;
    finished ones are not repeated. Raises UsageError for options that do not fit, and InputError for a model without
    checkpoints.
    """
    if config.seeds == 1 and not checkpoints:
        return [finetune(config, task=task, model=model, output=output, options=options, **files)]
    if checkpoints and (config.from_scratch or config.transfer == -1):
        raise UsageError("--checkpoints: --from-scratch transfers nothing of them; omit one of the two")
    if storage.exists(storage.join(output, CONFIG_FILE)):
        raise UsageError(f"{output}: contains a single fine-tuning; choose another --output")
    seeds, rows, summaries = range(config.seed, config.seed + config.seeds), [], []
    for step, initial in (checkpoints_by_step(model) if checkpoints else {None: None}).items():
        runs = []
        for seed in seeds:
            names = [f"step-{step}"] * checkpoints + [f"seed-{seed}"] * (len(seeds) > 1)
            folder, run = storage.join(output, *names), dataclasses.replace(config, seed=seed)
            summaries.append(
                finetune(run, task=task, model=model, output=folder, options=options, initial=initial, **files)
            )
            runs.append(storage.read_json(storage.join(folder, RESULTS))["metrics"])
        rows += [_summarize(step, figures, task) for figures in zip(*runs, strict=True)]
    for row in rows:
        shown = ", ".join(f"{value:.4f}" for value in row["values"])
        where = "" if row["step"] is None else f"step {row['step']:,}: "
        options.progress.note(f"{where}{row['name']}: median {row['value']:.4f} of {shown}")
    published = dataclasses.asdict(task)["published"]
    results = {"task": task.name, "seeds": list(seeds), "published": published, "metrics": rows}
    storage.write_json(storage.join(output, RESULTS), results)
    storage.write_bytes(storage.join(output, PAGE), render_sweep_page(results).encode())
    return summaries


def _summarize(step: int | None, figures: Sequence[Mapping[str, Any]], task: TaskDefinition) -> dict[str, Any]:
    """Return the median of a metric, and the values of all seeds; `scaled`: 0 is chance, 1 the best published one."""
    name, chance, values = figures[0]["name"], figures[0]["chance"], [figure["value"] for figure in figures]
    best = max((choice.value / 100 for choice in task.published.get(name, {}).values()), default=chance)
    scaled = [(value - chance) / (best - chance) for value in values] if best > chance else None
    median = statistics.median(values)
    return {"step": step, "name": name, "value": median, "values": values, "chance": chance, "scaled": scaled}


def _import_checkpoint(model: str, checkpoint: Checkpoint) -> ImportedModel:
    """Return the weights of a checkpoint of a training in the folder `model`."""
    if problem := checkpoint.problem():
        raise DamagedShardError(f"{problem}; delete {checkpoint.path} to leave it out")
    weights, sha256 = read_tensors(checkpoint.model_path), storage.sha256_of(checkpoint.model_path)
    return dataclasses.replace(import_weights(model), path=checkpoint.path, tensors=weights, sha256=sha256)


def _read_examples(
    options: TransformOptions, roles: Mapping[str, Sequence[str]], imported: ImportedModel
) -> tuple[dict[str, list[Example]], Drops, list[dict[str, Any]]]:
    """Return the examples by role, and the records for training and validation that cannot be used, with reasons."""
    if imported.tokenizer_json is None:
        raise InputError(f"{imported.path}: has no tokenizer; copy its tokenizer.json into the folder")
    tokenizer, size = load_tokenizer(imported.tokenizer_json, imported.path), imported.architecture
    if tokenizer.get_vocab_size() > size.vocab_size:
        raise InputError(
            f"{imported.path}: the tokenizer has more entries than the model; use the model's own tokenizer"
        )
    dropped: list[dict[str, Any]] = []
    examples, drops = dict[str, list[Example]](), Drops(lambda row: dropped.append({"role": role, **row}))
    for role in (TRAIN, VALIDATION):
        examples[role] = read_examples(options, roles[role], tokenizer, size, drops)
    if roles[TEST]:
        unread = Drops()
        examples[TEST] = read_examples(options, roles[TEST], tokenizer, size, unread, labeled=False)
        if count := unread.counts.total():
            raise InputError(f"{roles[TEST][0]}: {count:,} records cannot be read; predictions need all")
    return examples, drops, dropped


def _make_job(
    config: FineTuneConfig, recipe: FineTuneRecipe, task: TaskDefinition, transform: TransformOptions,
    examples: Mapping[str, Sequence[Example]], imported: ImportedModel, run: StageRun,
) -> tuple[TrainingJob, FineTuning]:  # fmt: skip
    """Return what to train, from the weights that are transferred; `imported` has none afterwards."""
    tokenizer, size = imported.tokenizer_json or b"", imported.architecture
    if recipe.transfer is not None:
        transfer_weights(imported.tensors, size, recipe.transfer, recipe.seed)
    weights = initial_weights(imported.tensors, transform.outputs, recipe.seed)
    imported.tensors.clear()  # so that they can be freed with the weights
    device = device_config(select_device(config.device), config.precision)
    architecture = dataclasses.replace(size, vocab_size=size.vocab_size + SPECIAL_TOKENS, dropout=recipe.dropout)
    objective = FineTuning(recipe, transform, examples[TRAIN], examples[VALIDATION], architecture, device)
    description = {
        "format": CLASSIFIER, "tokenizer_sha256": hashlib.sha256(tokenizer).hexdigest(),
        "task": task.name, "finetune": dataclasses.asdict(transform),
    }  # fmt: skip
    run_options = {name: getattr(config, name) for name in ("threads", "checkpoint_every", "log_every")}
    job = TrainingJob(
        recipe=recipe, options=TrainingOptions(compile="off", keep_best=True, **run_options), objective=objective,
        architecture=architecture, output=run.output, device=device, world=World(), note=run.note,
        title=f"Fine-tuning on {task.name}", unit="example", selects_best=True, description=description,
        tokenizer=tokenizer, initial=dataclasses.replace(imported, tensors=weights),
    )  # fmt: skip
    return job, objective


def _transform_options(task: TaskDefinition) -> TransformOptions:
    if not task.finetune:
        raise UsageError(f"{task.path}: the task {task.name} has no table [finetune]")
    where, values = places(task.path, "finetune"), {name: choice.value for name, choice in task.finetune.items()}
    options: TransformOptions = make_config(TransformOptions, values, {}, where)
    options.check(where(["transform"]))
    return options
