"""Measures a fine-tuned model on the validation set, and predicts the labels of the test set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.evaluation.metrics import Floats, summarize
from pipelines.finetuning.examples import VALIDATION, Example, TransformOptions
from pipelines.finetuning.objective import FineTuning
from pipelines.model.device import reproducible, translate_memory_errors
from pipelines.model.diagnostics.estimate import MEMORY_ADVICE
from pipelines.model.io.tensor_files import load_weights, read_tensors
from pipelines.model.network.classifier import SPECIAL_TOKENS
from pipelines.model.training.checkpoint import METRICS_FILE, MODEL_FILE, json_lines, read_best, read_json_lines
from pipelines.model.training.job import TrainingJob
from pipelines.model.training.log import PAGE_FILE, TIMING_FILE
from pipelines.records import shards
from pipelines.reports.finetuning import render_finetuning_page
from pipelines.reports.render import write_page
from pipelines.tokenizers.formats import load_tokenizer

RESULTS, DROPPED, PREDICTIONS, PAGE = "results.json", "dropped.jsonl", "predictions", "finetune.html"
EXAMPLES = shards.shard_name("examples", 0)
# The columns of numbers are the scores that `webtext overlap-report` averages, so labels are texts.
_SCHEMA = pa.schema([
    ("example", pa.int64()), ("place", pa.string()), ("part", pa.string()), ("label", pa.string()),
    ("predicted", pa.string()), ("accuracy", pa.bool_()), ("nll", pa.float32()), ("confidence", pa.float32()),
    ("squared_error", pa.float32()), ("outputs", pa.list_(pa.float32())),
])  # fmt: skip
# Errors on the page, and characters of their texts.
_LISTED, _SHOWN = 20, 400
Outputs = npt.NDArray[np.float32]
Row = dict[str, Any]


def measure(
    job: TrainingJob, objective: FineTuning, about: Mapping[str, Any], dropped: Sequence[Row],
    validation_files: Sequence[str], test: Sequence[Example],
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
            chance = _chance(figure["name"], columns["label"])
            metrics.append({**figure, "name": f"{part} {figure['name']}".strip(), "chance": chance})
        rows += _score(objective.options, part, examples, outputs[numbers], columns["predicted"])
    best = read_best(job.output)
    results = {**about, "best_step": best.step if best else None, "metrics": metrics}
    unread = [row["id"] for row in dropped if row["role"] == VALIDATION]
    files = (
        _write_examples(rows, unread, validation_files, job.output),
        *_write_predictions(objective, predicted, test, job.output),
        shards.write_file(job.output, RESULTS, storage.json_bytes(results)),
        shards.write_file(job.output, DROPPED, json_lines(dropped)),
    )
    _write_page(job, results, rows, list(_worst(job, objective, rows)))
    return files, {figure["name"]: figure["value"] for figure in metrics}


def _chance(metric: str, labels: Floats) -> float:
    """Return the metric of always the most frequent label, for F1 of always label 1; 0 for correlations."""
    share = float((labels > 0).mean())
    most = float(np.unique(labels, return_counts=True)[1].max()) / len(labels)
    return {"accuracy": most, "f1": 2 * share / (1 + share)}.get(metric, 0.0)


def _score(
    options: TransformOptions, part: str, examples: Sequence[Example], outputs: Outputs, predicted: Floats
) -> Iterator[Row]:
    """Yield the rows of the examples of a part, without their numbers but with their sequences of tokens."""
    shifted = outputs - outputs.max(1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    results = zip(examples, outputs.tolist(), log_probs.tolist(), predicted.tolist(), strict=True)
    for (place, sequences, gold), own, logs, value in results:
        scores = {"squared_error": (value - gold) ** 2}
        if not options.is_regression:
            scores = {"accuracy": bool(value == gold), "nll": -logs[int(gold)], "confidence": math.exp(max(logs))}
        names = {"place": place, "part": part, "label": _name(options, gold), "predicted": _name(options, value)}
        yield {**names, **scores, "outputs": own, "sequences": sequences}


def _name(options: TransformOptions, value: float) -> str:
    """Return the word of a label, the number of a candidate from 0, or a number."""
    return options.labels[int(value)].partition("|")[0] if options.labels else f"{value:.6g}"


def _write_examples(rows: Sequence[Row], unread: Sequence[str], files: Sequence[str], output: str) -> FileEntry:
    """Write a row per example, and one with nulls per record that cannot be used.

    They are numbered as `webtext overlap-report` numbers the records of the same files.
    """
    names = storage.names_below_common_folder(files)

    def record(place: str) -> tuple[int, int]:
        name, _, number = place.rpartition(":")
        return names.index(name), int(number.partition(".")[0])  # without that of a question of the record

    rows = [*rows, *({"place": place} for place in unread)]
    numbers = {key: number for number, key in enumerate(sorted({record(row["place"]) for row in rows}))}
    with shards.write_shard(output, EXAMPLES, _SCHEMA) as shard:
        for row in rows:
            shard.write({name: row.get(name) for name in _SCHEMA.names} | {"example": numbers[record(row["place"])]})
    return shard.entry


def _worst(job: TrainingJob, objective: FineTuning, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the most confident errors, or the largest ones of numbers, with their texts as the model reads them."""
    tokenizer, first_special = load_tokenizer(job.tokenizer, job.output), job.architecture.vocab_size - SPECIAL_TOKENS
    size = "squared_error" if objective.options.is_regression else "confidence"
    for row in sorted((row for row in rows if not row.get("accuracy")), key=lambda row: -row[size])[:_LISTED]:
        tokens = np.concatenate(row["sequences"])
        parts = np.split(tokens, np.flatnonzero(tokens >= first_special))
        texts = (tokenizer.decode(part[1:].tolist(), skip_special_tokens=False) for part in parts)
        shown = [text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…" for text in dict.fromkeys(texts) if text]
        yield {**row, "texts": "\n".join(shown)}


def _write_page(job: TrainingJob, results: Mapping[str, Any], rows: Sequence[Row], worst: Sequence[Row]) -> None:
    """Replace the page of the training, which is not part of the result either, because it has times."""
    about = {
        "title": "Training", "unit": job.unit, "parameters": job.parameters, "vocab_size": job.architecture.vocab_size,
        "facts": results["examples"], "recipe": job.recipe.to_json(),
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
