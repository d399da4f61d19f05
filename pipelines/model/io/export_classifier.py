"""Exports a fine-tuned model as a folder that GPT2ForSequenceClassification of transformers loads."""

from __future__ import annotations

from typing import Any

import msgspec

from pipelines import storage
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import InputError, WebtextError, translate_format_errors
from pipelines.model.io.hugging_face import from_hugging_face, model_config, to_hugging_face, to_json
from pipelines.model.io.tensor_files import read_tensors, write_tensors
from pipelines.model.network.classifier import HEAD, SPECIAL_TOKENS
from pipelines.model.network.gpt2 import Architecture
from pipelines.records import inputs, shards

# The `format` in the config.json of `webtext finetune`.
CLASSIFIER = "webtext-gpt2-classifier"


def read_format(model: str) -> Any:
    """Return the `format` in the config.json of a folder, None without one."""
    path = storage.join(model, "config.json")
    config = storage.read_json(path) if storage.exists(path) else None
    return config.get("format") if isinstance(config, dict) else None


def open_classifier(model: str) -> tuple[inputs.StageFolder, dict[str, Any], Architecture]:
    """Return a folder of finetune, whose checksums are verified, its config, and the architecture."""
    folder = inputs.open_stage(model, ("finetune",))
    for file in folder.files(""):
        file.verify()
    described = storage.read_json(path := folder.file("config.json").path)
    with translate_format_errors(path, "the config of a fine-tuned model; re-run `webtext finetune`"):
        return folder, described, msgspec.convert(described["architecture"], Architecture)


def export_classifier(stage: Stage, config: Any, *, model: str, output: str, options: RunOptions) -> Summary:
    """Write config, weights and tokenizer of a folder of finetune; records are tensors.

    The tokens start, delimiter and extract have the ids `bos_token_id`, `delimiter_token_id` and `eos_token_id` of the
    config. Raises InputError for locally banded attention, and WebtextError if the file that was written differs.
    """
    folder, described, architecture = open_classifier(model)
    with translate_format_errors(folder.file("config.json").path, "the config of a fine-tuned model"):
        task = described["finetune"]
        labels = [str(label).partition("|")[0] for label in task["labels"]] or ["score"]
    if architecture.attention_window:
        raise InputError(f"{model}: has alternating attention, which GPT2ForSequenceClassification does not have")
    start, delimiter, extract = range(architecture.vocab_size - SPECIAL_TOKENS, architecture.vocab_size)
    exported = model_config(architecture, extract) | {
        "architectures": ["GPT2ForSequenceClassification"],
        "bos_token_id": start,
        "pad_token_id": start,
        "delimiter_token_id": delimiter,
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        **({} if task["labels"] or task["transform"] == "choice" else {"problem_type": "regression"}),
        "transform": task["transform"],
    }

    def write() -> TaskResult:
        own = read_tensors(folder.file("model.safetensors").path)
        weights = to_hugging_face({name: weight for name, weight in own.items() if name != HEAD}) | {HEAD: own[HEAD]}
        files = [write_tensors(run.output, "model.safetensors", weights, {"format": "pt"})]
        written = from_hugging_face(read_tensors(storage.join(run.output, "model.safetensors")), run.output)
        if written.keys() != own.keys() or not all(weight.equal(written[name]) for name, weight in own.items()):
            raise WebtextError(f"{run.output}: the weights that were written differ; export them again")
        texts = {
            "config.json": to_json(exported),
            "tokenizer.json": storage.read_bytes(folder.file("tokenizer.json").path),
            "tokenizer_config.json": to_json({"tokenizer_class": "PreTrainedTokenizerFast"}),
        }
        files += [shards.write_file(run.output, name, data) for name, data in texts.items()]
        return TaskResult(len(own), len(own), files=tuple(files))

    with stage_run(
        stage, config, inputs={"model": folder.manifest.fingerprint()}, output=output, options=options
    ) as run:
        if not run.finished:
            run.once("export", write)
        return run.finish()
