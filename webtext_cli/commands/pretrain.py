"""`webtext pretrain`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from pipelines.build import CorpusConfig
from pipelines.errors import UsageError
from pipelines.model import require_torch
from pipelines.stages.pretrain.config import PretrainConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, check_disjoint, config_options, stage_config, stage_options


@click.command("pretrain")
@config_options(PretrainConfig)
@click.option("--show-preset", is_flag=True, help="Print the values of the preset and their origins, and exit.")
@click.option(
    "--input", "-i", metavar="DIR", multiple=True, help="Folder of tokenize. [default: the one in the corpus folder]"
)
@click.option(
    "--init-from",
    metavar="PATH",
    help="Initial weights: a GPT-2 folder of Hugging Face, pretrain or export, or nanoGPT's ckpt.pt.",
)
@click.option(
    "--show-batch",
    type=click.IntRange(1),
    metavar="STEP",
    help="Print the documents and the text in a step's batch, and exit.",
)
@click.option(
    "--replay",
    type=click.IntRange(1),
    metavar="STEP",
    help="Recompute a step, print its loss and its documents as JSON, and exit.",
)
@stage_options()
def command(
    shared: Shared, show_preset: bool, init_from: str | None, show_batch: int | None, replay: int | None, **options: Any
) -> None:
    """Train a GPT-2 on token shards.

    Re-run the same command to resume an interrupted run from its latest checkpoint; the weights are the same as without
    the interruption. Re-run it with more steps to extend a finished training. --workers has no effect; start several
    processes or GPUs with torchrun.

    \b
    Examples:
      webtext pretrain --corpus my-corpus --preset tiny
      webtext pretrain --corpus my-corpus --preset gpt2 --set steps=20000 --set batch_size=64
      webtext pretrain --preset gpt2-xl --show-preset
      webtext pretrain --corpus my-corpus --preset tiny --show-batch 120
      torchrun --nproc-per-node 2 --no-python webtext pretrain --corpus my-corpus --preset tiny --set micro_batch=2
      torchrun --nproc-per-node 8 --no-python webtext pretrain --corpus my-corpus --preset gpt2-xl
    """
    config = stage_config(PretrainConfig, "pretrain", shared.corpus, options)
    if show_batch is not None and replay is not None:
        raise UsageError("--show-batch and --replay cannot be combined")
    if show_preset:
        _show_preset(config, shared.as_json)
        return
    folders = shared.input or [shared.stage_input("tokenize")]
    if len(folders) > 1:
        raise UsageError("--input: pretrain reads one tokenize folder")
    initial = init_from or CorpusConfig(shared.corpus).paths("pretrain").get("init_from")
    if show_batch is not None:
        from pipelines.stages.pretrain.stage import show_batch as read_batch
        from webtext_cli.tables.batch import print_batch

        print_batch(read_batch(config, tokens=folders[0], step=show_batch), show_batch, shared.as_json)
        return
    require_torch()
    output = shared.stage_output("pretrain")
    if replay is None:
        _train(config, shared, tokens=folders[0], output=output, init_from=initial)
        return
    from pipelines.stages.pretrain.training import replay as replay_step

    note = shared.run_options().progress.note
    report = replay_step(config, tokens=folders[0], output=output, step=replay, note=note, init_from=initial)
    click.echo(report.decode(), nl=False)


def _train(config: PretrainConfig, shared: Shared, tokens: str, output: str, init_from: str | None) -> None:
    from pipelines.model.training.parallel import torchrun_world
    from pipelines.stages.pretrain.stage import pretrain
    from pipelines.stages.pretrain.training import run_worker_rank

    check_disjoint(output, [init_from] if init_from else [])
    if shared.quiet:
        config = dataclasses.replace(config, log_every=0)
    if not torchrun_world().is_rank_zero:
        run_worker_rank(config, tokens=tokens, output=output, init_from=init_from)
        return
    summary = pretrain(config, tokens=tokens, output=output, options=shared.run_options(), init_from=init_from)
    print_summary(summary, shared.as_json)


def _show_preset(config: PretrainConfig, as_json: bool) -> None:
    from pipelines.model.training.recipe import make_recipe, parameter_count, parse_overrides, read_preset

    recipe, overrides = make_recipe(config.preset, config.set, config.seed), parse_overrides(config.set)
    rows = {
        key: {"value": getattr(recipe, key), "origin": entry.origin, "note": entry.note}
        if key not in overrides
        else {"value": overrides[key], "origin": "set", "note": f"the preset has {entry.value}"}
        for key, entry in read_preset(config.preset).items()
    }
    parameters = parameter_count(recipe, 50_257)
    if as_json:
        click.echo(json.dumps({"preset": config.preset, "parameters": parameters, "values": rows}, ensure_ascii=False))
        return
    for key, row in rows.items():
        click.echo(f"{key:<20} {row['value']:<8} {row['origin']:<10} {row['note']}")
    click.echo(f"{parameters:,} parameters with GPT-2's vocabulary of 50,257 entries")
