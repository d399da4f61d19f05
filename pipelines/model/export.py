"""Writes a trained model as a folder that Hugging Face's transformers load."""

from __future__ import annotations

import dataclasses

from pipelines.core import progress, shards
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.model.checkpoint import pack_tensors
from pipelines.model.hugging_face import model_config, to_hugging_face, to_json, tokenizer_files
from pipelines.model.model_folder import TrainedModel, open_model

STAGE = Stage(
    "export",
    1,
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


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Export has no options: what it writes follows from the model."""


def export(config: ExportConfig, *, model: str, output: str, options: RunOptions) -> Summary:
    """Write config, weights, tokenizer and a model card; records are the model's tensors.

    Raises InputError where the folder holds no model, or one that is exported already.
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
    architecture = trained.model.architecture
    tensors = to_hugging_face(trained.model.state_dict())
    special = {"bos_token_id": trained.end_of_text, "eos_token_id": trained.end_of_text}
    files = {
        "config.json": to_json(model_config(architecture, trained.end_of_text)),
        # transformers refuse weights without this mark.
        "model.safetensors": pack_tensors(tensors, {"format": "pt"}),
        "generation_config.json": to_json(special),
        **tokenizer_files(trained.tokenizer_json, architecture.context, trained.end_of_text),
        "README.md": _model_card(trained).encode(),
    }
    written: list[FileEntry] = [shards.write_file(output, name, data) for name, data in files.items()]
    progress.advance(len(tensors))
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return TaskResult(len(tensors), len(tensors), counts={"parameters": parameters}, files=tuple(written))


def _model_card(trained: TrainedModel) -> str:
    size, recipe = trained.model.architecture, trained.described["recipe"]
    parameters = sum(weight.numel() for weight in trained.model.parameters())
    steps = recipe["steps"] if trained.step is None else trained.step
    tokens = steps * recipe["batch_size"] * recipe["context"]
    unfinished = "" if trained.step is None else f" This is the checkpoint of step {trained.step:,}: it is unfinished."
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# A GPT-2 trained with webtext

{parameters:,} parameters: {size.layers} layers, width {size.width}, {size.heads} heads, context {size.context},
vocabulary {size.vocab_size:,}. The architecture is GPT-2's; the weights are not OpenAI's.

Trained from the preset `{recipe["preset"]}` for {steps:,} of {recipe["steps"]:,} steps, {tokens:,} tokens
(tokens of several epochs count each time).{unfinished}
{_held_out_sentence(trained.figures)}
The values of the recipe:

{"".join(f"- {name}: {value}{chr(10)}" for name, value in recipe.items())}
The fingerprint of the training tokens (their folder's manifest):
`{trained.described["tokens_fingerprint"]}`.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder")
tokenizer = AutoTokenizer.from_pretrained("this folder")
```
"""


def _held_out_sentence(figures: dict[str, float]) -> str:
    if "held_out_loss" not in figures:
        return "\nIt was not measured on held-out text.\n"
    bits = figures.get("held_out_bits_per_byte")
    in_bits = f", {bits:.4f} bits a byte" if bits is not None else ""
    loss, tokens = figures["held_out_loss"], round(figures["held_out_tokens"])
    return f"\nHeld-out loss: {loss:.4f} nats a token{in_bits}, over {tokens:,} tokens of the same corpus.\n"
