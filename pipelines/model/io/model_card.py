"""The model card of an exported model: what it is, how it was trained, what was measured, and what to expect of it."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from pipelines.model.diagnostics.flops import flops_per_token
from pipelines.model.io.model_folder import TrainedModel

_LARGEST_LOSS = 50.0  # beyond it training went astray, and the exponential is no figure to read


def model_card(trained: TrainedModel) -> str:
    """Return the `README.md` of a model that pretrain made; it holds no time and no path."""
    recipe = trained.described["recipe"]
    return _CARD.format(
        model=_model(trained),
        first_weights=_first_weights(trained.described),
        data=_data(trained),
        training=_training(trained, recipe),
        recipe="\n".join(f"| `{name}` | {value} |" for name, value in recipe.items()),
        evaluation=_evaluation(trained.figures),
        context=trained.model.architecture.context,
        new_tokens=min(100, trained.model.architecture.context // 2),
    )


def _model(trained: TrainedModel) -> str:
    size, parameters = trained.model.architecture, _parameters(trained)
    return (
        f"{parameters:,} parameters: {size.layers} layers, width {size.width}, {size.heads} heads, "
        f"context {size.context}, vocabulary {size.vocab_size:,}."
    )


def _first_weights(described: dict[str, Any]) -> str:
    begun = described.get("initial_weights")
    if not begun:
        return "The weights are not OpenAI's: training began with random ones."
    about = ", ".join(f"{name} `{value}`" for name, value in sorted(begun.items()))
    return f"Training went on from weights that were there before ({about}); what is known of them holds here too."


def _data(trained: TrainedModel) -> str:
    digest = hashlib.sha256(trained.tokenizer_json).hexdigest()
    return (
        f"Token shards of `webtext tokenize`, fingerprint `{trained.described['tokens_fingerprint']}`.\n"
        f"Tokenizer: byte-level BPE of {trained.model.architecture.vocab_size:,} entries, SHA-256 `{digest}`."
    )


def _training(trained: TrainedModel, recipe: dict[str, Any]) -> str:
    size = trained.model.architecture
    steps = recipe["steps"] if trained.step is None else trained.step
    tokens = steps * recipe["batch_size"] * recipe["context"]
    flops = tokens * flops_per_token(_parameters(trained), size.layers, size.width, size.context)
    unfinished = "" if trained.step is None else f"\nThis is the checkpoint of step {trained.step:,}: it is unfinished."
    return (
        f"From the preset `{recipe['preset']}` for {steps:,} of {recipe['steps']:,} steps, {tokens:,} tokens\n"
        "(tokens of several epochs count each time), "
        f"about {flops:.2g} floating-point operations at 6N + 12 L d T a token.{unfinished}"
    )


def _evaluation(figures: dict[str, float]) -> str:
    if "held_out_loss" not in figures:
        return "It was not measured on held-out text."
    when = f" of step {figures['step']:,}" if "step" in figures else ""
    loss, tokens = figures["held_out_loss"], round(figures["held_out_tokens"])
    bits = figures.get("held_out_bits_per_byte")
    in_bits = f", {bits:.4f} bits a byte" if bits is not None else ""
    perplexity = f"Perplexity: {math.exp(loss):,.2f}. " if loss < _LARGEST_LOSS else ""
    return (
        f"Held-out loss{when}: {loss:.4f} nats a token{in_bits}, over {tokens:,} tokens of the same corpus.\n"
        f"{perplexity}Losses of models with other vocabularies do not compare; bits a byte do, on the same text.\n"
        "It was not measured on benchmarks."
    )


def _parameters(trained: TrainedModel) -> int:
    return sum(weight.numel() for weight in trained.model.parameters())


_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- gpt2
- webtext
---

# A GPT-2 trained with webtext

{model} The architecture is GPT-2's.
{first_weights}

## Training data

{data}

## Training

{training}

| value of the recipe | |
|---|---|
{recipe}

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

or `webtext generate --model "this folder" --prompt "The history of"`. The model sees {context} tokens at once.

## Limits

A language model goes on from text as its training text does: it follows no instructions, states what is false as
readily as what is true, and repeats the prejudices of its sources. It may repeat passages of them word for word, also
personal ones; `webtext overlap-report` measures with `--samples` how much of its samples the corpus holds. The licence
of a model follows from its text and is not named here: add `license:` at the head of this page before you publish it.
"""
