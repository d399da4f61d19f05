"""`webtext compare`: trains models on corpora under one protocol and compares them.

Each step is an ordinary stage in a folder of its own, which decides whether it is complete:

    texts/            pieces of held-out documents and of neutral texts
    counts/, tokenizer/, tokens/NAME/
    overlap/NAME/     which 8-grams of all examples are in the training documents of a corpus
    models/NAME/seed-N/, evaluate/NAME/seed-N/
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines import storage
from pipelines.comparison.config import CompareConfig
from pipelines.comparison.corpora import Documents, held_out_name, open_corpora, open_texts
from pipelines.comparison.examples import (
    MAX_OVERLAP,
    ExampleSet,
    Flags,
    choose_tasks,
    find_contained,
    open_sets,
    read_texts,
    with_held_out,
)
from pipelines.comparison.jobs import Job, JobContext, parallel_jobs, plan_recipe, read_curve, run_jobs
from pipelines.comparison.measures import read_scores
from pipelines.comparison.statistics import compare_runs, summarize_pairs
from pipelines.engine.manifest import has_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.definitions import TaskInput
from pipelines.evaluation.task import Encoder, ModelFacts
from pipelines.format import format_percent, plural
from pipelines.model.diagnostics.estimate import flops_per_token
from pipelines.model.diagnostics.speed import measure_step_s
from pipelines.model.training.data import open_tokens
from pipelines.model.training.recipe import Recipe, parameter_count, parse_overrides
from pipelines.records import inputs
from pipelines.reports.comparison import render_comparison_page
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.preset import choose_recipe
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.stages.tokenize.stage import tokenize
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.stage import train_bpe
from pipelines.tokenizers.formats import load_tokenizer, read_tokenizer

CONTENT, PAGE = "compare.json", "compare.html"
_FORMAT = 1
# For a model that GPT-2's vocabulary would dwarf.
_TINY_VOCABULARY = 4096
# Of English prose, by a vocabulary of tens of thousands of entries.
_BYTES_PER_TOKEN = 4.2
# In 32 bits: the weights of a model, and its checkpoint with two moments; a second one while it is written.
_BYTES_PER_PARAMETER = 4 + 2 * 12


def compare(config: CompareConfig, *, corpora: Sequence[str], output: str, options: RunOptions) -> dict[str, Any]:
    """Train models on each corpus, compare them, and write and return `compare.json`; see docs/compare.md.

    `corpora` are `[NAME=]PATH`. What an earlier call did is kept; more seeds, texts or tasks are added to it. Raises
    UsageError for contradictory options, InputError for corpora that are too small, and for a set of examples all of
    which a corpus contains.
    """
    config, preset, documents, texts, tasks = open_comparison(config, corpora, output, options)
    names, folder = [corpus.name for corpus in documents], functools.partial(storage.join, output)
    counts = read_texts(config, documents, texts, preset.context, folder("texts"), options)
    tokenizer = config.tokenizer or _train_tokenizer(config, documents, counts, output, options)
    run_tokenize = functools.partial(tokenize, TokenizeConfig(**config.shared()), tokenizer=tokenizer, options=options)
    for corpus in documents:
        run_tokenize(documents=corpus.path, output=folder("tokens", corpus.name))
    tokens = {name: open_tokens(folder("tokens", name)) for name in names}
    recipe, overrides = plan_recipe(config, preset.preset, {name: one.train.tokens for name, one in tokens.items()})
    first = tokens[names[0]]
    facts = ModelFacts(
        tokenizer, "", parameter_count(recipe, first.vocab_size), None, recipe.context, first.vocab_size,
        first.end_of_text,
    )  # fmt: skip
    encoder = Encoder(first.tokenizer, facts)
    sets = open_sets(documents, texts, tasks, folder("texts"), encoder, config.limit)
    contained = find_contained(config, documents, sets, output, options)
    excluded = {name: np.logical_or.reduce([*flags.values()]) for name, flags in contained.items()}
    _check_sets(sets, excluded, contained, options)
    jobs = [Job(name, seed) for seed in range(config.seeds) for name in names]
    context = JobContext(config, recipe, overrides, tuple(one.task for one in sets), output)
    run_jobs(jobs, context, options)
    scores = [score for one in sets for score in read_scores(one, jobs, output, ~excluded[one.name])]
    comparisons = compare_runs(scores)
    content = {
        "format": _FORMAT,
        "corpora": [
            {
                "name": name, "path": path, "fingerprint": source.fingerprint, "documents": counts[name]["documents"],
                "train_tokens": tokens[name].train.tokens, "held_out_documents": counts[name]["held_out"],
            }
            for name, path, source in documents
        ],
        "protocol": {
            "preset": recipe.preset, "parameters": facts.parameters, "vocab_size": facts.vocab_size,
            "tokenizer": config.tokenizer or "trained on equal parts of all corpora",
            "tokens_per_run": context.tokens, "steps": recipe.steps, "seeds": list(range(config.seeds)),
            "recipe": {name: value for name, value in recipe.to_json().items() if name != "seed"},
            "averaged_checkpoints": config.average_last,
            "max_overlap": MAX_OVERLAP, "ngram": OverlapReportConfig().ngram,
            "text": _describe_protocol(config, recipe, facts, sets),
        },
        "runs": [
            {
                "corpus": job.corpus, "seed": job.seed, "training_seed": job.training_seed,
                "folder": job.folder("models"), "curve": read_curve(folder(job.folder("models"))),
            }
            for job in jobs
        ],
        "sets": [
            {
                "name": one.name, "kind": one.kind, "corpus": one.corpus, "examples": len(one.texts),
                "excluded": {name: int(flags.sum()) for name, flags in contained[one.name].items()},
                "excluded_in_all": int(excluded[one.name].sum()), "used": int((~excluded[one.name]).sum()),
            }
            for one in sets
        ],
        "measures": [
            {**dataclasses.asdict(score.measure), "values": {name: score.values(name).tolist() for name in names}}
            for score in scores
        ],
        "comparisons": comparisons,
        "summary": summarize_pairs(comparisons),
    }  # fmt: skip
    storage.write_json(folder(CONTENT), content)
    storage.write_bytes(folder(PAGE), render_comparison_page(content).encode())
    return content


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


class Comparison(NamedTuple):
    """What is compared: corpora, texts and tasks; the config is complete, the steps of the preset are its own."""

    config: CompareConfig
    preset: Recipe
    corpora: list[Documents]
    texts: list[Documents]
    tasks: list[TaskInput]


def open_comparison(config: CompareConfig, corpora: Sequence[str], output: str, options: RunOptions) -> Comparison:
    """Open what is compared; by default with the preset of the models in the folder, or one for the device.

    Raises UsageError for contradictory options, and for two sets of one name.
    """
    if config.tokenizer and config.vocab_size:
        raise UsageError("--vocab-size has no effect with --tokenizer; omit one of them")
    if "steps" in parse_overrides(config.set):
        raise UsageError("--set steps: the steps follow from --tokens; use that")
    documents, texts, tasks = open_corpora(corpora, config), open_texts(config.text, config), choose_tasks(config.task)
    sets = [
        *(held_out_name(one.name) for one in documents),
        *(one.name for one in texts),
        *(one.label for one in tasks),
    ]
    if repeated := next((name for name in sets if sets.count(name) > 1), None):
        raise UsageError(f"compare: two sets are named {repeated}; give the --text another name")
    training = PretrainConfig(preset=config.preset, set=config.set, device=config.device)
    first = storage.join(output, Job(documents[0].name, 0).folder("models"))
    preset = choose_recipe(training, first, options.progress.note)
    config = with_held_out(config, documents, preset.context)
    if not config.tokenizer and not config.vocab_size:
        vocab_size = _TINY_VOCABULARY if preset.preset == "tiny" else TrainBpeConfig().vocab_size
        config = dataclasses.replace(config, vocab_size=vocab_size)
    return Comparison(config, preset, documents, texts, tasks)


def _train_tokenizer(
    config: CompareConfig, corpora: Sequence[Documents], counts: Mapping[str, Mapping[str, int]], output: str,
    options: RunOptions,
) -> str:  # fmt: skip
    """Train a tokenizer on as many bytes of each corpus as the smallest has, without the held-out documents."""
    sizes = {name: count["text_bytes"] for name, count in counts.items()}
    least = min(sizes.values())
    folders = []
    for corpus in corpora:
        part = None if sizes[corpus.name] == least else least
        counting = TrainBpeConfig(**config.shared(), train_on="kept", sample_bytes=part, count_only=True)
        folders.append(storage.join(output, "counts", corpus.name))
        train_bpe(counting, documents=corpus.path, output=folders[-1], options=options)
    assert config.vocab_size
    training = TrainBpeConfig(held_out=config.held_out, train_on="kept", vocab_size=config.vocab_size)
    tokenizer = storage.join(output, "tokenizer")
    train_bpe(training, documents=[], counts=folders, output=tokenizer, options=options)
    return tokenizer


def _check_sets(
    sets: Sequence[ExampleSet], excluded: Mapping[str, Flags], contained: Mapping[str, Mapping[str, Flags]],
    options: RunOptions,
) -> None:  # fmt: skip
    """Raise InputError for a set without a usable example; note what cannot decide which corpus is better."""
    for one in sets:
        if excluded[one.name].all():
            counts = ", ".join(f"{name} {int(flags.sum()):,}" for name, flags in contained[one.name].items())
            raise InputError(
                f"{one.name}: all {plural(len(one.texts), 'example')} are in the training documents of a corpus "
                f"({counts}); name another text or task, or remove near-duplicates with `webtext dedup`"
            )
        if one.kind != "held-out" and not one.decides(~excluded[one.name]):
            options.progress.note(
                f"{one.name}: decides nothing, since {excluded[one.name].mean():.0%} of its examples are in the "
                "training documents of a corpus, and the others may be of the same kind"
            )
    if all(one.kind == "held-out" for one in sets):
        options.progress.note(
            "nothing decides which corpus is better, since its own held-out documents favor each; add --text or --task"
        )


def _describe_protocol(config: CompareConfig, recipe: Recipe, facts: ModelFacts, sets: Sequence[ExampleSet]) -> str:
    """Return the protocol as a paragraph for a paper."""
    tokenizer = "a given tokenizer" if config.tokenizer else "a byte-level BPE, trained on equal parts of all corpora,"
    last = config.average_last
    weights = f"the average of the last {last} checkpoints" if last else "the last weights"
    names = {kind: ", ".join(one.name for one in sets if one.kind == kind) for kind in ("text", "task")}
    deciding = ", ".join(filter(None, names.values())) or "no set"
    return (
        f"On each corpus we trained {plural(config.seeds, 'model')} of {facts.parameters:,} parameters (preset "
        f"{recipe.preset}: {recipe.layers} layers, width {recipe.width}, context {recipe.context}) with different "
        f"initial weights and orders of the data, for {recipe.steps:,} steps of {recipe.batch_tokens:,} tokens, at "
        f"most one epoch of the smallest corpus, and evaluated {weights}. All models share {tokenizer} "
        f"with {facts.vocab_size:,} entries. Of the documents of each corpus, {format_percent(config.held_out, 1)} are "
        f"held out, chosen by a hash. The models are compared on the same examples: {deciding}. The held-out documents "
        f"of a single corpus do not decide, since they favor it. An example is excluded for all corpora if more than "
        f"{MAX_OVERLAP:.0%} of its 8-grams occur in the training documents of any of them (examples of fewer than 8 "
        "words are not tested); a set of which more than half is excluded decides nothing. "
        "Differences of means over models are tested by Welch's t-test, with Holm's correction for all measures and "
        "pairs of corpora."
    )
