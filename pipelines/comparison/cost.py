"""What a comparison will cost: `webtext compare --plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines import storage
from pipelines.comparison.config import CompareConfig
from pipelines.comparison.jobs import parallel_jobs, plan_recipe
from pipelines.comparison.stage import open_comparison
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions
from pipelines.model.diagnostics.estimate import flops_per_token
from pipelines.model.diagnostics.speed import measure_step_s
from pipelines.model.training.data import open_tokens
from pipelines.model.training.recipe import parameter_count
from pipelines.records import inputs
from pipelines.tokenizers.formats import load_tokenizer, read_tokenizer

# Of English prose, by a vocabulary of tens of thousands of entries.
_BYTES_PER_TOKEN = 4.2
# In 32 bits: the weights of a model, and its checkpoint with two moments; a second one while it is written.
_BYTES_PER_PARAMETER = 4 + 2 * 12


def plan_comparison(
    config: CompareConfig, *, corpora: Sequence[str], output: str, options: RunOptions
) -> dict[str, Any]:
    """Return what `compare` would train, and how long that takes on this machine by a measurement of a few seconds.

    Numbers of tokens are estimates until the corpora are tokenized. Raises what `compare` raises for its options.
    """
    config, preset, documents, _, _ = open_comparison(config, corpora, output, options)
    vocab_size = config.vocab_size or 0
    if config.tokenizer:
        vocab_size = load_tokenizer(read_tokenizer(config.tokenizer), config.tokenizer).get_vocab_size()
    tokens: dict[str, int] = {}
    is_exact = True
    for corpus in documents:
        folder = storage.join(output, "tokens", corpus.name)
        if has_manifest(folder):
            tokens[corpus.name] = open_tokens(folder, verify=False).train.tokens
        else:
            text_bytes = inputs.estimate_text_bytes(corpus.source.files) * (1 - config.held_out)
            tokens[corpus.name], is_exact = round(text_bytes / _BYTES_PER_TOKEN), False
    recipe, _ = plan_recipe(config, preset.preset, tokens)
    parameters, models = parameter_count(recipe, vocab_size), len(documents) * config.seeds
    at_once, threads, _ = parallel_jobs(config, options, models)
    model_s = recipe.steps * measure_step_s(recipe, vocab_size, config.device, threads)
    run_tokens = recipe.steps * recipe.batch_tokens
    return {
        "preset": recipe.preset,
        "parameters": parameters,
        "vocab_size": vocab_size,
        "train_tokens": tokens,
        "are_tokens_exact": is_exact,
        "steps": recipe.steps,
        "tokens_per_run": run_tokens,
        "models": models,
        "models_at_once": at_once,
        "flops": models
        * run_tokens
        * flops_per_token(parameters, recipe.layers, recipe.width, recipe.context, recipe.attention_window),
        "seconds_per_model": model_s,
        "seconds": model_s * -(-models // at_once),
        "disk_bytes": models * parameters * (_BYTES_PER_PARAMETER + 12 * max(0, config.average_last - 1)),
    }
