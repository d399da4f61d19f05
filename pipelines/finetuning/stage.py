"""Fine-tunes a model on a task, and measures it on the validation set. Radford et al. 2018."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import storage
from pipelines.engine.config import make_config, places
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import TaskDefinition
from pipelines.evaluation.metrics import summarize
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
from pipelines.model.device import device_config, reproducible, select_device, translate_memory_errors
from pipelines.model.diagnostics.estimate import MEMORY_ADVICE, check_estimate
from pipelines.model.io.export_classifier import CLASSIFIER
from pipelines.model.io.import_weights import ImportedModel, import_weights
from pipelines.model.io.model_folder import CONFIG_FILE
from pipelines.model.io.tensor_files import load_weights, read_tensors
from pipelines.model.network.classifier import SPECIAL_TOKENS, initial_weights, transfer_weights
from pipelines.model.training.checkpoint import MODEL_FILE, json_lines, latest_checkpoint, read_best
from pipelines.model.training.finetune_recipe import FineTuneRecipe, describe_values, make_finetune_recipe
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.objective import evaluation_work
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import TrainingOptions
from pipelines.model.training.trainer import train
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.tokenizers.formats import load_tokenizer

RESULTS, DROPPED, PREDICTIONS = "results.json", "dropped.jsonl", "predictions"
EXAMPLES = shards.shard_name("examples", 0)
STAGE = Stage(
    "finetune",
    1,
    (
        *("model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "timing.jsonl", "training.html"),
        *("best.json", "checkpoints/", "spikes/", f"{PREDICTIONS}/", RESULTS, DROPPED),
    ),
    is_expensive=True,
)
_SCHEMA = pa.schema([
    ("place", pa.string()), ("part", pa.string()), ("label", pa.float64()), ("predicted", pa.float64()),
    ("outputs", pa.list_(pa.float32())),
])  # fmt: skip


def finetune(
    config: FineTuneConfig, *, task: TaskDefinition, files: Sequence[str], validation: Sequence[str] = (),
    test: Sequence[str] = (), model: str, output: str, options: RunOptions,
) -> Summary:  # fmt: skip
    """Fine-tune a model on a task, or resume from the latest checkpoint in `output`; records are examples trained on.

    Without `validation` files, the names of `files` say which are for training, for validation and for testing, of
    which only predictions are written. `model` is a folder of pretrain, export or transformers, or of finetune, whose
    head is replaced. Raises UsageError for wrong options and a task without a table `[finetune]`, InputError for files
    without usable examples, and WebtextError if memory is clearly insufficient or the loss is not finite.
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
    imported = import_weights(model)
    transfer, layers = -1 if config.from_scratch else config.transfer, imported.architecture.layers
    for name, number in {"transfer": transfer, "freeze": config.freeze}.items():
        if number is not None and number > layers:
            raise UsageError(f"--{name} {number}: the model has {layers} layers")
    examples, dropped = _read_examples(transform, roles, imported)
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
        "finetune": {name: dataclasses.asdict(choice) for name, choice in task.finetune.items()},
        "recipe": describe_values(config.set, recipe),
        "model": {"path": imported.path, "source": imported.source, "sha256": imported.sha256},
        "examples": counts,
        "dropped": len(dropped),
    }
    with stage_run(STAGE, recipe, inputs=fingerprints, output=output, options=options) as run:
        if not run.finished:
            run.note(f"{task.name}: {counts[TRAIN]:,} examples for training, {counts[VALIDATION]:,} for validation")
            if dropped:
                run.note(f"{len(dropped):,} records cannot be used; {DROPPED} lists them")
            job, objective = _make_job(config, recipe, task, transform, examples, imported, run)
            if recipe.freeze < 0:  # the estimate is that of training all weights
                check_estimate(job)
            checkpoint = latest_checkpoint(run.output, run.note)
            step = checkpoint.step if checkpoint else 0
            work = sum(map(objective.tokens, range(step, recipe.steps))) + evaluation_work(job, step)
            run.once("train", lambda: train(job, checkpoint), total=work, unit="tokens")
            test_set = examples.get(TEST, [])
            results = run.once(
                "results", lambda: _measure(objective, config.threads, about, dropped, test_set, run.output),
                unit="tokens",
            )  # fmt: skip
            for name, value in results.counts.items():
                run.note(f"{task.name}: {name} {value:.4f}")
        return run.finish()


def _read_examples(
    options: TransformOptions, roles: Mapping[str, Sequence[str]], imported: ImportedModel
) -> tuple[dict[str, list[Example]], list[dict[str, Any]]]:
    """Return the examples by role, and the records for training and validation that cannot be used, with reasons."""
    if imported.tokenizer_json is None:
        raise InputError(f"{imported.path}: has no tokenizer; copy its tokenizer.json into the folder")
    tokenizer = load_tokenizer(imported.tokenizer_json, imported.path)
    size = dataclasses.replace(
        imported.architecture, vocab_size=imported.architecture.vocab_size - imported.special_tokens
    )
    if tokenizer.get_vocab_size() > size.vocab_size:
        raise InputError(
            f"{imported.path}: the tokenizer has more entries than the model; use the model's own tokenizer"
        )
    dropped: list[dict[str, Any]] = []
    examples, drops = dict[str, list[Example]](), Drops(dropped.append)
    for role in (TRAIN, VALIDATION):
        examples[role] = read_examples(options, roles[role], tokenizer, size, drops)
    if roles[TEST]:
        unread = Drops()
        examples[TEST] = read_examples(options, roles[TEST], tokenizer, size, unread, labeled=False)
        if count := unread.counts.total():
            raise InputError(f"{roles[TEST][0]}: {count:,} records cannot be read; predictions need all")
    return examples, dropped


def _make_job(
    config: FineTuneConfig, recipe: FineTuneRecipe, task: TaskDefinition, transform: TransformOptions,
    examples: Mapping[str, Sequence[Example]], imported: ImportedModel, run: StageRun,
) -> tuple[TrainingJob, FineTuning]:  # fmt: skip
    """Return what to train, from the weights that are transferred; `imported` has none afterwards."""
    tokenizer, size = imported.tokenizer_json or b"", imported.architecture
    new = SPECIAL_TOKENS - imported.special_tokens
    if recipe.transfer is not None:
        transfer_weights(imported.tensors, size, recipe.transfer, recipe.seed)
    weights = initial_weights(imported.tensors, transform.outputs, recipe.seed, new)
    imported.tensors.clear()  # so that they can be freed with the weights
    device = device_config(select_device(config.device), config.precision)
    architecture = dataclasses.replace(size, vocab_size=size.vocab_size + new, dropout=recipe.dropout)
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


def finetune_seeds(config: FineTuneConfig, *, output: str, options: RunOptions, **inputs: Any) -> list[Summary]:
    """Fine-tune with `config.seeds` seeds; of several, each in `seed-N`, with the median in `results.json`."""
    if config.seeds == 1:
        return [finetune(config, output=output, options=options, **inputs)]
    if storage.exists(storage.join(output, CONFIG_FILE)):
        raise UsageError(f"{output}: contains a fine-tuning with one seed; choose another --output")
    seeds = range(config.seed, config.seed + config.seeds)
    folders = {seed: storage.join(output, f"seed-{seed}") for seed in seeds}
    summaries = [
        finetune(dataclasses.replace(config, seed=seed), output=folder, options=options, **inputs)
        for seed, folder in folders.items()
    ]
    values: dict[str, dict[str, list[float]]] = {}
    for folder in folders.values():
        for part, figures in storage.read_json(storage.join(folder, RESULTS))["parts"].items():
            for figure in figures:
                values.setdefault(part, {}).setdefault(figure["name"], []).append(figure["value"])
    parts = {
        part: {name: {"median": statistics.median(one), "values": one} for name, one in by_name.items()}
        for part, by_name in values.items()
    }
    storage.write_json(storage.join(output, RESULTS), {"seeds": list(seeds), "parts": parts})
    for part, by_name in values.items():
        for name, one in by_name.items():
            shown = ", ".join(f"{value:.4f}" for value in one)
            options.progress.note(f"{part} {name}: median {statistics.median(one):.4f} of {shown}".strip())
    return summaries


def _transform_options(task: TaskDefinition) -> TransformOptions:
    if not task.finetune:
        raise UsageError(f"{task.path}: the task {task.name} has no table [finetune]")
    where, values = places(task.path, "finetune"), {name: choice.value for name, choice in task.finetune.items()}
    options: TransformOptions = make_config(TransformOptions, values, {}, where)
    options.check(where(["transform"]))
    return options


def _measure(
    objective: FineTuning, threads: int, about: Mapping[str, Any], dropped: list[dict[str, Any]],
    test: Sequence[Example], output: str,
) -> TaskResult:  # fmt: skip
    """Write the results and the predictions of the model for validation and test set; counts are the metrics."""
    path, model = storage.join(output, MODEL_FILE), objective.empty_model()
    load_weights(model, read_tensors(path), path)
    model.to(objective.device.device).eval()
    with reproducible(objective.device.device, threads), translate_memory_errors(MEMORY_ADVICE):
        outputs = objective.predict(model, objective.validation)
        predictions = list(_write_predictions(objective, objective.predict(model, test), test, output)) if test else []
    figures: dict[str, Any] = {}
    with shards.write_shard(output, EXAMPLES, _SCHEMA) as shard:
        for part, numbers in objective.parts_of(objective.validation).items():
            columns, places = objective.columns(outputs, numbers), [objective.validation[n].place for n in numbers]
            figures[part] = summarize(objective.metrics, columns, places)
            for index, number in enumerate(numbers):
                row = {name: columns[name][index] for name in ("label", "predicted")}
                shard.write({"place": places[index], "part": part, "outputs": outputs[number].tolist(), **row})
    best = read_best(output)
    results = {**about, "best_step": best.step if best else None, "parts": figures}
    files = (
        shard.entry,
        *predictions,
        shards.write_file(output, RESULTS, storage.json_bytes(results)),
        shards.write_file(output, DROPPED, json_lines(dropped)),
    )
    counts = {f"{part} {one['name']}".strip(): one["value"] for part, group in figures.items() for one in group}
    return TaskResult(counts=counts, files=files)


def _write_predictions(
    objective: FineTuning, outputs: npt.NDArray[np.float32], test: Sequence[Example], output: str
) -> Iterator[FileEntry]:
    """Write the predictions for a test set in GLUE's submission format: numbers of its rows from 0, and labels."""
    options = objective.options
    names = dict(zip(options.parts or ("",), options.submission, strict=False))
    for part, numbers in objective.parts_of(test).items():
        name, rows = names.get(part, f"predictions-{part or 'other'}.tsv"), outputs[numbers]
        shown = rows[:, 0].tolist() if options.is_regression else rows.argmax(1).tolist()
        if options.submits == "word":
            shown = [options.labels[number].partition("|")[0] for number in shown]
        lines = ["index\tprediction", *(f"{index}\t{text}" for index, text in enumerate(shown)), ""]
        yield shards.write_file(output, f"{PREDICTIONS}/{name}", "\n".join(lines).encode())
