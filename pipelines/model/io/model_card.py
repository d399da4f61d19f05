"""The model card of an exported model: architecture, data, training, evaluation, usage and limits."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from pipelines.model.diagnostics.flops import flops_per_token
from pipelines.model.io.model_folder import TrainedModel

_MAX_LOSS = 50.0  # beyond it training has diverged, and the perplexity is meaningless


def model_card(trained: TrainedModel) -> str:
    """Return the `README.md` of a trained model, without times and paths."""
    size, recipe = trained.model.architecture, trained.config["recipe"]
    steps = recipe["steps"] if trained.step is None else trained.step
    tokens = steps * recipe["batch_size"] * recipe["context"]
    unfinished = (
        f"\nThese are the weights of the checkpoint of step {trained.step:,}." if trained.step is not None else ""
    )
    return _CARD.format(
        size=size,
        parameters=trained.parameters,
        initial_weights=_initial_weights(trained.config.get("initial_weights")),
        fingerprint=trained.config["tokens_fingerprint"],
        tokenizer_sha256=hashlib.sha256(trained.tokenizer_json).hexdigest(),
        recipe=recipe,
        steps=steps,
        tokens=tokens,
        flops=tokens * flops_per_token(trained.parameters, size.layers, size.width, size.context),
        unfinished=unfinished,
        values="\n".join(f"| `{name}` | {value} |" for name, value in recipe.items()),
        evaluation=_evaluation(trained.figures),
        new_tokens=min(100, size.context // 2),
    )


def _initial_weights(origin: dict[str, Any] | None) -> str:
    if not origin:
        return "The weights are not OpenAI's: training started from random weights."
    source = ", ".join(f"{name} `{value}`" for name, value in sorted(origin.items()))
    return f"Training continued from existing weights ({source}); what is known about them applies here too."


def _evaluation(figures: dict[str, float]) -> str:
    if "held_out_loss" not in figures:
        return "It was not evaluated on held-out text."
    step = f" at step {figures['step']:,}" if "step" in figures else ""
    loss, tokens = figures["held_out_loss"], round(figures["held_out_tokens"])
    bits = figures.get("held_out_bits_per_byte")
    per_byte = f", {bits:.4f} bits per byte" if bits is not None else ""
    perplexity = f"Perplexity: {math.exp(loss):,.2f}. " if loss < _MAX_LOSS else ""
    return (
        f"Held-out loss{step}: {loss:.4f} nats per token{per_byte}, over {tokens:,} tokens of the same corpus.\n"
        f"{perplexity}Losses are not comparable across vocabularies; bits per byte are, on the same text.\n"
        "It was not evaluated on benchmarks."
    )


_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- gpt2
- webtext
---

# A GPT-2 trained with webtext

{parameters:,} parameters: {size.layers} layers, width {size.width}, {size.heads} heads, context {size.context}, \
vocabulary {size.vocab_size:,}. The architecture is GPT-2's.
{initial_weights}

## Training data

Token shards of `webtext tokenize`, fingerprint `{fingerprint}`.
Tokenizer: byte-level BPE with {size.vocab_size:,} entries, SHA-256 `{tokenizer_sha256}`.

## Training

Preset `{recipe[preset]}`, {steps:,} of {recipe[steps]:,} steps, {tokens:,} tokens
(tokens of several epochs count each time), about {flops:.2g} FLOPs at 6N + 12 L d T per token.{unfinished}

| recipe | value |
|---|---|
{values}

## Evaluation

{evaluation}

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder")
tokenizer = AutoTokenizer.from_pretrained("this folder")
prompt = tokenizer("The history of", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, do_sample=True, top_k=40, max_new_tokens={new_tokens})[0]))
```

or `webtext generate --model "this folder" --prompt "The history of"`. The context length is {size.context} tokens.

## Limits

A language model continues text in the manner of its training data: it does not follow instructions, states falsehoods
as readily as facts, and reproduces the biases of its sources. It may repeat passages verbatim, including personal data;
`webtext overlap-report --samples` measures how much of its samples is in the corpus. The license of a model depends on
its training data and is not stated here: add `license:` to the header of this page before you publish the model.
"""
