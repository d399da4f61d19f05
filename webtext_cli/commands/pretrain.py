"""`webtext pretrain`."""

from __future__ import annotations

import json
from typing import Any

import click

from pipelines.core.errors import UsageError
from pipelines.model.config import PretrainConfig
from webtext_cli.console import print_summary
from webtext_cli.options import Shared, config_options, stage_config, stage_options


@click.command("pretrain")
@config_options(PretrainConfig)
@click.option("--show-preset", is_flag=True, help="Print the values of the preset, where each is from, and stop.")
@click.option(
    "--input", "-i", metavar="DIR", multiple=True, help="The folder of tokenize, if it is not the corpus folder's."
)
@stage_options()
def command(shared: Shared, show_preset: bool, **given: Any) -> None:
    """Train a GPT-2 on token shards.

    A run that was stopped goes on from its latest checkpoint when the same command is given again, and comes to the
    same weights. It runs in one process; --workers has no effect, see --threads.

    \b
    Example:
      webtext pretrain --corpus my-corpus --preset tiny
      webtext pretrain --corpus my-corpus --preset gpt2 --set steps=20000 --set batch_size=64
      webtext pretrain --preset gpt2-xl --show-preset
    """
    config = stage_config(PretrainConfig, "pretrain", shared.corpus, given)
    if show_preset:
        _show_preset(config, shared.as_json)
        return
    from pipelines.model.stage import pretrain

    folders = shared.input_or("tokenize")
    if len(folders) > 1:
        raise UsageError("--input: pretrain reads one folder of tokenize")
    summary = pretrain(config, tokens=folders[0], output=shared.stage_output("pretrain"), options=shared.run_options())
    print_summary(summary, shared.as_json)


def _show_preset(config: PretrainConfig, as_json: bool) -> None:
    from pipelines.model.recipe import make_recipe, parameter_count, parse_overrides, read_preset

    recipe, overrides = make_recipe(config), parse_overrides(config.set)
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
