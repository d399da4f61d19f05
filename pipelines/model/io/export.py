"""Writes a trained model as a folder that Hugging Face's transformers load."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from pipelines.core import progress, shards
from pipelines.core.errors import InputError, WebtextError
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.model.device import reproducible
from pipelines.model.io.hugging_face import model_config, to_hugging_face, to_json, tokenizer_files
from pipelines.model.io.model_card import model_card
from pipelines.model.io.model_folder import TrainedModel, open_model
from pipelines.model.network.gpt2 import GPT2
from pipelines.model.training.checkpoint import pack_tensors

STAGE = Stage(
    "export",
    2,
    (
        "config.json",
        "model.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "README.md",
    ),
)

_COMPARED_TOKENS = 64
# With accents, digits, spaces, lines and what is not written with letters.
_COMPARED_TEXT = "The cat, größer than 日本 in 1998 😀\n\n  two  spaces\tit's <|endoftext|>It runs."


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Export has no options: what it writes follows from the model."""


def export(config: ExportConfig, *, model: str, output: str, options: RunOptions) -> Summary:
    """Write config, weights, tokenizer and a model card, and read them back; records are the model's tensors.

    Raises InputError where the folder holds no model, or one that is exported already, and WebtextError where what was
    read back computes other logits.
    """
    trained = open_model(model)
    if trained.exported:
        raise InputError(f"{model}: is a Hugging Face folder already")
    trained.tokenizer()  # refuses a tokenizer of another vocabulary
    with stage_run(STAGE, config, {"model": trained.fingerprint()}, output, options) as run:
        if not run.finished:
            if trained.step is not None:
                run.note(f"{model}: its training is not finished; this is its checkpoint of step {trained.step:,}")
            tensors = len(trained.model.state_dict())
            run.once("export", lambda: _write(trained, output), total=tensors, unit="tensors")
        return run.finish()


def _write(trained: TrainedModel, output: str) -> TaskResult:
    written = tuple(shards.write_file(output, name, data) for name, data in _files(trained))
    compared = _compare(trained, open_model(output))
    tensors = len(trained.model.state_dict())
    progress.advance(tensors)
    parameters = sum(weight.numel() for weight in trained.model.parameters())
    return TaskResult(tensors, tensors, counts={"parameters": parameters, "logits_compared": compared}, files=written)


def _files(trained: TrainedModel) -> Iterator[tuple[str, bytes]]:
    """Yield the files one by one, so that the bytes of the weights are let go before the next."""
    architecture, end = trained.model.architecture, trained.end_of_text
    yield "config.json", to_json(model_config(architecture, end))
    # transformers refuse weights without this mark.
    yield "model.safetensors", pack_tensors(to_hugging_face(trained.model.state_dict()), {"format": "pt"})
    yield "generation_config.json", to_json({"bos_token_id": end, "eos_token_id": end, "pad_token_id": end})
    yield from tokenizer_files(trained.tokenizer_json, architecture.context, end).items()
    yield "README.md", model_card(trained).encode()


def _compare(ours: TrainedModel, written: TrainedModel) -> int:
    """Return how many logits were compared; raise WebtextError where the folder is not the model that was meant."""
    ids, theirs = (each.tokenizer().encode(_COMPARED_TEXT, add_special_tokens=False).ids for each in (ours, written))
    if ids != theirs:
        raise WebtextError(_differs(written.path, "its tokenizer gives other ids"))
    logits, read_back = _logits(ours.model), _logits(written.model)
    if not torch.isfinite(logits).all():
        raise InputError(f"{ours.path}: the model's logits are no numbers: its training went wrong, see metrics.jsonl")
    if not torch.equal(logits, read_back):
        largest = (logits - read_back).abs().max().item()
        raise WebtextError(_differs(written.path, f"its logits differ by up to {largest:.3g}"))
    return logits.numel()


@torch.no_grad()
def _logits(model: GPT2) -> torch.Tensor:
    size = model.architecture
    tokens = torch.arange(min(size.context, _COMPARED_TOKENS)) * 7919 % size.vocab_size
    with reproducible(torch.device("cpu"), 0):
        logits: torch.Tensor = model(tokens[None])
    return logits


def _differs(path: str, how: str) -> str:
    return (
        f"{path}: what was read back is not what was written: {how}; delete the folder and export again, and if it "
        "stays so, report it: this is a bug in webtext or a fault of the disk"
    )
