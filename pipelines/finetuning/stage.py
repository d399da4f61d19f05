"""Fine-tunes a model on a task, and measures it on the validation set. Radford et al. 2018."""

from __future__ import annotations

import dataclasses
import hashlib
import math
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
from pipelines.engine.run import RunOptions, Stage, StageRun, Summary, stage_run
from pipelines.errors import DamagedShardError, InputError, UsageError
from pipelines.evaluation.definitions import TASK_NAMES, TaskDefinition, read_task
from pipelines.evaluation.metrics import Floats, summarize
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
from pipelines.model.device import device_config, reproducible, select_device, translate_memory_errors
from pipelines.model.diagnostics.estimate import MEMORY_ADVICE, check_estimate
from pipelines.model.io.export_classifier import CLASSIFIER
from pipelines.model.io.import_weights import ImportedModel, import_weights
from pipelines.model.io.model_folder import CONFIG_FILE
from pipelines.model.io.tensor_files import load_weights, read_tensors
from pipelines.model.network.classifier import SPECIAL_TOKENS, initial_weights, transfer_weights
from pipelines.model.training.checkpoint import (
    METRICS_FILE,
    MODEL_FILE,
    Checkpoint,
    json_lines,
    latest_checkpoint,
    read_best,
    read_json_lines,
)
from pipelines.model.training.finetune_recipe import FineTuneRecipe, describe_values, make_finetune_recipe
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.log import PAGE_FILE, TIMING_FILE
from pipelines.model.training.objective import evaluation_work
from pipelines.model.training.parallel import World
from pipelines.model.training.recipe import TrainingOptions
from pipelines.model.training.trainer import train
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.reports.finetuning import render_finetuning_page, render_sweep_page
from pipelines.reports.render import write_page
from pipelines.tokenizers.formats import load_tokenizer

RESULTS, DROPPED, PREDICTIONS, PAGE = "results.json", "dropped.jsonl", "predictions", "finetune.html"
EXAMPLES = shards.shard_name("examples", 0)
# For `webtext overlap-report` it is a benchmark with its scores, the columns of numbers, so labels are texts.
_SCHEMA = pa.schema([
    ("place", pa.string()), ("part", pa.string()), ("text", pa.string()), ("label", pa.string()),
    ("predicted", pa.string()), ("accuracy", pa.bool_()), ("nll", pa.float32()), ("confidence", pa.float32()),
    ("squared_error", pa.float32()), ("outputs", pa.list_(pa.float32())),
])  # fmt: skip
# Errors on the page, and characters of a line of their texts.
_LISTED, _SHOWN = 20, 400
Outputs = npt.NDArray[np.float32]
Row = dict[str, Any]
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
    which only predictions are written. `model` is a folder of pretrain, export or transformers, or of finetune, whose
    head is replaced; `initial` selects a checkpoint of pretrain. Records are the examples for training and validation.
    Raises UsageError for wrong options and a task without a table `[finetune]`, InputError for files without usable
    examples, and WebtextError if memory is clearly insufficient or the loss is not finite.
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
    if config.from_scratch and config.transfer is not None:
        raise UsageError("--from-scratch is --transfer -1; omit one of the two")
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
        "cut": {role: sum(example.is_cut for example in group) for role, group in examples.items()},
        "dropped": dict(drops.counts),
        "published": dataclasses.asdict(task)["published"],
    }
    with stage_run(STAGE, recipe, inputs=fingerprints, output=output, options=options) as run:
        if not run.finished:
            run.note(f"{task.name}: {counts[TRAIN]:,} examples for training, {counts[VALIDATION]:,} for validation")
            job, objective = _make_job(config, recipe, task, transform, examples, imported, run)
            if recipe.freeze < 0:  # the estimate is that of training all weights
                check_estimate(job)
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
                lambda: drops.task_result(kept, *_measure(job, objective, about, dropped, test_set)),
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
        if any(name.startswith(("seed-", "step-")) for name in storage.list_folder(output)):
            raise UsageError(f"{output}: contains several fine-tunings; choose another --output")
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
    tokenizer = load_tokenizer(imported.tokenizer_json, imported.path)
    size = dataclasses.replace(
        imported.architecture, vocab_size=imported.architecture.vocab_size - imported.special_tokens
    )
    if tokenizer.get_vocab_size() > size.vocab_size:
        raise InputError(
            f"{imported.path}: the tokenizer has more entries than the model; use the model's own tokenizer"
        )
    dropped: list[dict[str, Any]] = []
    examples, drops = dict[str, list[Example]](), Drops(lambda row: dropped.append({"role": role, **row}))
    for role in (TRAIN, VALIDATION):
        examples[role] = read_examples(options, roles[role], tokenizer, size, drops)
    missing = set(range(len(options.labels))) - {example.gold for example in examples[TRAIN]}
    if missing and (details := [row["detail"] for row in dropped if row["reason"] == "bad_record"]):
        label = options.labels[int(min(missing))]
        raise InputError(f"{roles[TRAIN][0]}: no example for training has the label {label} ({details[0]})")
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


def _transform_options(task: TaskDefinition) -> TransformOptions:
    if not task.finetune:
        names = ", ".join(name for name in TASK_NAMES if read_task(name).finetune)
        raise UsageError(f"{task.path}: has no table [finetune]; these tasks have one: {names}")
    where, values = places(task.path, "finetune"), {name: choice.value for name, choice in task.finetune.items()}
    options: TransformOptions = make_config(TransformOptions, values, {}, where)
    options.check(where(["transform"]))
    return options


def _measure(
    job: TrainingJob, objective: FineTuning, about: Mapping[str, Any], dropped: Sequence[Row], test: Sequence[Example]
) -> tuple[tuple[FileEntry, ...], dict[str, float]]:  # fmt: skip
    """Write the results, the predictions for validation and test set, and the page; return the files and the metrics.

    `about` begins `results.json`; `dropped` are the records that cannot be used.
    """
    path, model = storage.join(job.output, MODEL_FILE), objective.empty_model()
    load_weights(model, read_tensors(path), path)
    model.to(objective.device.device).eval()
    with reproducible(objective.device.device, job.options.threads), translate_memory_errors(MEMORY_ADVICE):
        outputs = objective.predict(model, objective.validation)
        predicted = objective.predict(model, test) if test else outputs
    metrics, rows = list[Row](), list[Row]()
    for part, numbers in objective.parts_of(objective.validation).items():
        columns, examples = objective.columns(outputs, numbers), [objective.validation[number] for number in numbers]
        for figure in summarize(objective.metrics, columns, [example.place for example in examples]):
            chance = _chance(objective.options, figure["name"], columns["label"], outputs.shape[1])
            metrics.append({**figure, "name": f"{part} {figure['name']}".strip(), "chance": chance})
        rows += _score(objective.options, part, examples, outputs[numbers], columns["predicted"])
    best = read_best(job.output)
    results = {**about, "best_step": best.step if best else None, "metrics": metrics}
    with shards.write_shard(job.output, EXAMPLES, _SCHEMA) as shard:
        for row in rows:
            shard.write({name: row.get(name) for name in _SCHEMA.names})
    files = (
        shard.entry,
        *_write_predictions(objective, predicted, test, job.output),
        shards.write_file(job.output, RESULTS, storage.json_bytes(results)),
        shards.write_file(job.output, DROPPED, json_lines(dropped)),
    )
    _write_page(job, results, rows, _worst(objective.options, rows))
    return files, {figure["name"]: figure["value"] for figure in metrics}


def _chance(options: TransformOptions, metric: str, labels: Floats, outputs: int) -> float:
    """Return the metric of always the most frequent label, of candidates of any one; for F1 of always label 1.

    For correlations, 0.
    """
    share = float((labels > 0).mean())
    is_choice = options.transform == "choice"
    most = 1 / outputs if is_choice else float(np.unique(labels, return_counts=True)[1].max()) / len(labels)
    return {"accuracy": most, "f1": 2 * share / (1 + share)}.get(metric, 0.0)


def _score(
    options: TransformOptions, part: str, examples: Sequence[Example], outputs: Outputs, predicted: Floats
) -> Iterator[Row]:
    """Yield the rows of the examples of a part."""
    shifted = outputs - outputs.max(1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    results = zip(examples, outputs.tolist(), log_probs.tolist(), predicted.tolist(), strict=True)
    for (place, text, _, gold, _), own, logs, value in results:
        scores = {"squared_error": (value - gold) ** 2}
        if not options.is_regression:
            scores = {"accuracy": bool(value == gold), "nll": -logs[int(gold)], "confidence": math.exp(max(logs))}
        labels = {"label": _name(options, gold), "predicted": _name(options, value)}
        yield {"place": place, "part": part, "text": text, **labels, **scores, "outputs": own}


def _name(options: TransformOptions, value: float) -> str:
    """Return the word of a label, the number of a candidate from 0, or a number."""
    return options.labels[int(value)].partition("|")[0] if options.labels else f"{value:.6g}"


def _worst(options: TransformOptions, rows: Sequence[Row]) -> list[Row]:
    """Return the most confident errors, or the largest ones of numbers, with shortened texts."""
    size = "squared_error" if options.is_regression else "confidence"
    errors = sorted((row for row in rows if not row.get("accuracy")), key=lambda row: -row[size])[:_LISTED]
    return [{**row, "text": "\n".join(map(_shorten, row["text"].splitlines()))} for row in errors]


def _shorten(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _write_page(job: TrainingJob, results: Mapping[str, Any], rows: Sequence[Row], worst: Sequence[Row]) -> None:
    """Replace the page of the training, which is not part of the result either, because it has times."""
    cut = sum(results["cut"].values())
    facts = {**results["examples"], "with a cut text": cut, "loss": "L3 in training, L2 held out"}
    about = {
        "title": "Training", "unit": job.unit, "parameters": job.parameters, "vocab_size": job.architecture.vocab_size,
        "facts": facts, "recipe": job.recipe.to_json(),
    }  # fmt: skip
    metrics, timing = (read_json_lines(storage.join(job.output, name)) for name in (METRICS_FILE, TIMING_FILE))
    write_page(job.output, PAGE, render_finetuning_page(results, rows, worst, metrics, timing, about))
    storage.remove(storage.join(job.output, PAGE_FILE))


def _write_predictions(
    objective: FineTuning, outputs: Outputs, test: Sequence[Example], output: str
) -> Iterator[FileEntry]:
    """Write the predictions for a test set in GLUE's submission format: numbers of its rows from 0, and labels."""
    options = objective.options
    names = dict(zip(options.parts or ("",), options.submission, strict=False))
    for part, numbers in objective.parts_of(test).items():
        name, rows = names.get(part, f"predictions-{part or 'other'}.tsv"), outputs[numbers]
        shown = rows[:, 0].tolist() if options.is_regression else rows.argmax(1).tolist()
        if options.submits == "word":
            shown = [_name(options, number) for number in shown]
        lines = ["index\tprediction", *(f"{index}\t{text}" for index, text in enumerate(shown)), ""]
        yield shards.write_file(output, f"{PREDICTIONS}/{name}", "\n".join(lines).encode())
