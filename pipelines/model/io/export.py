"""Exports a trained model as a folder that Hugging Face transformers load."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from pipelines import progress, storage
from pipelines.engine.config import option
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import InputError, WebtextError
from pipelines.model.device import reproducible
from pipelines.model.diagnostics.estimate import flops_per_token
from pipelines.model.io.export_classifier import CLASSIFIER, export_classifier, read_format
from pipelines.model.io.gpt_neo import to_gpt_neo
from pipelines.model.io.hugging_face import model_config, to_hugging_face, to_json, tokenizer_files
from pipelines.model.io.model_folder import TrainedModel, is_exported, open_model
from pipelines.model.io.tensor_files import write_tensors
from pipelines.model.network.gpt2 import GPT2
from pipelines.model.training.mixture import format_losses, planned_blocks
from pipelines.records import shards
from pipelines.storage.resources import data_path

STAGE = Stage(
    "export",
    2,
    (
        *("config.json", "model.safetensors", "generation_config.json", "README.md"),
        *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"),
    ),
)

_MAX_LOSS = 50.0  # beyond it training has diverged, and the perplexity is meaningless
_COMPARED_TOKENS = 64
_ROUNDING = 1e-4  # of the largest logit; 2e-6 of it is usual
# With accents, digits, spaces, newlines, CJK and emoji.
_COMPARED_TEXT = "The cat, größer than 日本 in 1998 😀\n\n  two  spaces\tit's <|endoftext|>It runs."


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Which weights of a training are exported."""

    best: bool = option(
        False, "Export the checkpoint with the lowest held-out loss (pretrain --keep-best), not the last weights."
    )


def export(config: ExportConfig, *, model: str, output: str, options: RunOptions) -> Summary:
    """Write config, weights, tokenizer and a model card, and read them back; records are the model's tensors.

    Raises InputError if the folder has no model, or an exported one, and WebtextError if the exported model computes
    different logits. A folder of finetune is exported as a classifier.
    """
    if read_format(model) == CLASSIFIER:
        return export_classifier(STAGE, config, model=model, output=output, options=options)
    trained = open_model(model, best=config.best)
    if is_exported(trained.config):
        raise InputError(f"{model}: already in Hugging Face format")
    trained.tokenizer()  # raises if its vocabulary does not fit
    with stage_run(STAGE, config, inputs={"model": trained.fingerprint()}, output=output, options=options) as run:
        if not run.finished:
            if trained.step is not None:
                reason = "" if config.best else "training has not finished; "
                run.note(f"{model}: {reason}exporting the checkpoint of step {trained.step:,}")
            tensors = len(trained.model.state_dict())
            run.once("export", lambda: _export(trained, run.output), total=tensors, unit="tensors")
        return run.finish()


def _export(trained: TrainedModel, output: str) -> TaskResult:
    files = tuple(_write_files(trained, output))
    compared = _compare(trained, open_model(output))
    tensors = len(trained.model.state_dict())
    progress.advance(tensors)
    counts = {"parameters": trained.parameters, "compared_logits": compared}
    return TaskResult(tensors, tensors, counts=counts, files=files)


def _write_files(trained: TrainedModel, output: str) -> Iterator[FileEntry]:
    architecture, end = trained.model.architecture, trained.end_of_text
    own, is_banded = trained.model.state_dict(), architecture.attention_window > 0
    weights = to_gpt_neo(own, architecture.heads, trained.path) if is_banded else to_hugging_face(own)
    weights = dict(sorted(weights.items()))
    yield write_tensors(output, "model.safetensors", weights, {"format": "pt"})  # transformers require the format
    texts = {
        "config.json": to_json(model_config(architecture, end)),
        "generation_config.json": to_json({"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}),
        **tokenizer_files(trained.tokenizer_json, architecture.context, end),
        "README.md": model_card(trained).encode(),
    }
    yield from (shards.write_file(output, name, data) for name, data in texts.items())


def _compare(trained: TrainedModel, exported: TrainedModel) -> int:
    """Return the number of logits compared; raise WebtextError if the exported model differs."""
    ids, exported_ids = (
        model.tokenizer().encode(_COMPARED_TEXT, add_special_tokens=False).ids for model in (trained, exported)
    )
    if ids != exported_ids:
        raise WebtextError(_difference(exported.path, "its tokenizer gives different ids"))
    logits, exported_logits = _logits(trained.model), _logits(exported.model)
    if not torch.isfinite(logits).all():
        raise InputError(f"{trained.path}: the model's logits are not finite: training diverged, see metrics.jsonl")
    largest = (logits - exported_logits).abs().max().item()
    # GPT-Neo's format has other weights for the same function.
    tolerance = _ROUNDING * logits.abs().max().item() if trained.model.architecture.attention_window else 0.0
    if not largest <= tolerance:  # also if it is not a number
        raise WebtextError(_difference(exported.path, f"its logits differ by up to {largest:.3g}"))
    return logits.numel()


@torch.no_grad()
def _logits(model: GPT2) -> torch.Tensor:
    size = model.architecture
    tokens = torch.arange(min(size.context, _COMPARED_TOKENS)) * 7919 % size.vocab_size
    with reproducible(torch.device("cpu")):
        logits: torch.Tensor = model(tokens[None])
    return logits


def _difference(path: str, difference: str) -> str:
    return (
        f"{path}: the exported model differs from the original: {difference}; delete the folder and export again. "
        "If the error persists, report it: it is a bug in webtext or a disk error"
    )


def model_card(trained: TrainedModel) -> str:
    """Return the `README.md` of a trained model, without times and paths."""
    size, recipe = trained.model.architecture, trained.config["recipe"]
    steps = recipe["steps"] if trained.step is None else trained.step
    tokens = steps * recipe["batch_size"] * recipe["context"]
    unfinished = (
        f"\nThese are the weights of the checkpoint of step {trained.step:,}." if trained.step is not None else ""
    )
    template = storage.read_bytes(data_path("model_card.md")).decode()
    initial_weights = "The weights are not OpenAI's: training started from random weights."
    if origin := trained.config.get("initial_weights"):
        source = ", ".join(f"{name} `{value}`" for name, value in sorted(origin.items()))
        initial_weights = (
            f"Training continued from existing weights ({source}); what is known about them applies here too."
        )
    window = size.attention_window
    return template.format(
        size=size,
        model_type=model_config(size, trained.end_of_text)["model_type"],
        attention=f", but every second layer attends to the latest {window:,} tokens only" if window else "",
        parameters=trained.parameters,
        initial_weights=initial_weights,
        sources=_sources(trained.config, steps),
        tokenizer_sha256=hashlib.sha256(trained.tokenizer_json).hexdigest(),
        recipe=recipe,
        steps=steps,
        tokens=tokens,
        flops=tokens * flops_per_token(trained.parameters, size.layers, size.width, size.context, window),
        unfinished=unfinished,
        values="\n".join(f"| `{name}` | {value} |" for name, value in recipe.items()),
        evaluation=_evaluation(trained.figures),
        new_tokens=min(100, size.context // 2),
    )


def _sources(config: dict[str, Any], steps: int) -> str:
    """Return the token shards that the model was trained on, of a mixture as a list."""
    if "sources" not in config:
        return f"Token shards of `webtext tokenize`, fingerprint `{config['tokens_fingerprint']}`."
    recipe, lines = config["recipe"], ["A mixture of token shards of `webtext tokenize`:", ""]
    blocks = planned_blocks(recipe.get("mixture", ()), steps, recipe["batch_size"])
    for name, source in config["sources"].items():
        read = blocks.get(name, 0) * recipe["context"]
        size = f"{read:,.0f} tokens, {read / max(1, source['tokens']):.2f} epochs"
        lines.append(f"- {name}: {size}, fingerprint `{source['fingerprint']}`")
    return "\n".join([*lines, ""])  # ends the list


def _evaluation(figures: dict[str, float]) -> str:
    if "held_out_loss" not in figures:
        return "It was not evaluated on held-out text."
    step = f" at step {figures['step']:,}" if "step" in figures else ""
    loss, tokens = figures["held_out_loss"], round(figures["held_out_tokens"])
    bits = figures.get("held_out_bits_per_byte")
    per_byte = f", {bits:.4f} bits per byte" if bits is not None else ""
    perplexity = f"Perplexity: {math.exp(loss):,.2f}. " if loss < _MAX_LOSS else ""
    return (
        f"Held-out loss{step}: {loss:.4f} nats per token{per_byte}, over {tokens:,} tokens of the same corpus"
        f"{format_losses(figures)}.\n{perplexity}Losses are not comparable across vocabularies; bits per byte are, "
        "on the same text.\nIt was not evaluated on benchmarks."
    )
