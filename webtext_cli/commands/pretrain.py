"""`webtext pretrain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from pipelines.corpus_config import check_corpus
from pipelines.errors import UsageError
from pipelines.model import require_torch
from pipelines.storage import join
from webtext_cli.console import print_result, print_summary, print_table, say
from webtext_cli.options import StageCall, stage_command
from webtext_cli.parameters import Number

if TYPE_CHECKING:
    from pipelines.model.training.recipe import Recipe


@stage_command("pretrain", "Token shards: a folder of `webtext tokenize`", has_tasks=False)
@click.option("--show-preset", is_flag=True, help="Print the values of the preset with their origins, and exit.")
@click.option(
    "--mix",
    metavar="NAME=DIR:WEIGHT",
    multiple=True,
    help="Train on several tokenize folders, each with its share of the blocks; NAME=DIR:2epochs fixes how often the "
    "run reads a source.",
)
@click.option(
    "--init-from",
    metavar="PATH",
    help="Initial weights: a GPT-2 or GPT-Neo folder of Hugging Face, pretrain or export, or a nanoGPT ckpt.pt.",
)
@click.option(
    "--show-batch",
    type=Number(int, 1),
    metavar="STEP",
    help="Print the documents and text in a step's batch, and exit.",
)
@click.option(
    "--replay",
    type=Number(int, 1),
    metavar="STEP",
    help="Recompute a step, print its loss and documents as JSON, and exit.",
)
def command(
    call: StageCall, show_preset: bool, mix: tuple[str, ...], init_from: str | None, show_batch: int | None,
    replay: int | None,
) -> None:  # fmt: skip
    """Train a GPT-2 on token shards.

    Re-run the same command to resume an interrupted run from its latest checkpoint; the weights are the same as without
    the interruption. Re-run it with more steps to extend a finished training. torchrun starts one process per
    GPU.

    \b
    Examples:
      webtext pretrain --corpus my-corpus --preset tiny
      webtext pretrain --corpus my-corpus --preset gpt2 --set steps=20000
      webtext pretrain --mix web=a/tokenize:7 --mix books=b/tokenize:3 -o model
      webtext pretrain --preset gpt2-xl --show-preset
      webtext pretrain --corpus my-corpus --preset tiny --show-batch 120
      torchrun --nproc-per-node 8 --no-python webtext pretrain --preset gpt2-xl
    """
    config = call.config()
    if show_batch is not None and replay is not None:
        raise UsageError("--show-batch and --replay cannot be combined")
    from pipelines.model.training.mixture import parse_sources
    from pipelines.stages.pretrain.preset import choose_recipe
    from pipelines.stages.pretrain.stage import pretrain
    from pipelines.stages.pretrain.stage import show_batch as read_batch

    options, output = call.run_options(), call.output or join(call.corpus, "pretrain")
    note = options.progress.note
    if show_preset:
        _show_preset(choose_recipe(config, output, note), config.set, call.as_json)
        return
    if not call.input and not mix:
        check_corpus(call.corpus, "-i")
    if len(call.input) > 1 or (call.input and mix):
        raise UsageError("--input: pretrain reads one tokenize folder; name several with --mix alone")
    # --input also replaces the mixture of webtext.toml.
    tokens = call.input[0] if call.input else call.configured(tokens=mix)["tokens"] or join(call.corpus, "tokenize")
    folders = [source.folder for source in parse_sources(tokens).values()]
    if show_batch is not None:
        blocks = read_batch(choose_recipe(config, output, note), tokens=tokens, step=show_batch, output=output)
        print_result({"step": show_batch, "blocks": blocks}, call.as_json, print_batch)
        return
    init_from = call.configured(init_from=init_from)["init_from"]
    require_torch()
    from pipelines.model.training.parallel import torchrun_world
    from pipelines.stages.pretrain import training

    inputs: dict[str, Any] = {"tokens": tokens, "init_from": init_from}
    if replay is not None:
        report = training.replay(config, **inputs, output=call.output_folder(), step=replay, note=note)
        say(report.decode().rstrip("\n"))
        return
    output = call.output_folder(*folders, *([init_from] if init_from else []))
    if call.quiet:
        config = dataclasses.replace(config, log_every=0)
    if not torchrun_world().is_rank_zero:
        training.run_worker_rank(config, **inputs, output=output)
        return
    print_summary(pretrain(config, **inputs, output=output, options=options), call.as_json)


def _show_preset(recipe: Recipe, settings: Sequence[str], as_json: bool) -> None:
    from pipelines.model.training.recipe import parameter_count, parse_overrides, read_preset

    overrides = parse_overrides(settings)
    rows = {
        key: {"value": getattr(recipe, key), "origin": entry.origin, "note": entry.note}
        if key not in overrides
        else {"value": overrides[key], "origin": "set", "note": f"the preset has {entry.value}"}
        for key, entry in read_preset(recipe.preset).items()
    }
    parameters = parameter_count(recipe, 50_257)

    def print_preset(preset: dict[str, Any]) -> None:
        lines = [[key, str(row["value"]), row["origin"], row["note"]] for key, row in preset["values"].items()]
        print_table(["key", "value", "origin", "reason"], lines, text_columns=True)
        say(f"{parameters:,} parameters with GPT-2's vocabulary of 50,257 entries")

    print_result({"preset": recipe.preset, "parameters": parameters, "values": rows}, as_json, print_preset)


def print_batch(batch: Mapping[str, Any]) -> None:
    """Print the blocks of a step with the text of their documents."""
    step, blocks = batch["step"], batch["blocks"]
    for index, block in enumerate(blocks, 1):
        source = f" of {block.source}" if block.source else ""
        say(f"step {step:,}, {index:,} of {len(blocks):,}: block {block.number:,}{source}")
        for piece in block.pieces:
            start = f"its token {piece.document_start:,}" if piece.document_start else "its beginning"
            place = f"{piece.file}, tokens {piece.start:,} to {piece.stop - 1:,}"
            say(f"  {place}: document {piece.id} from {start}")
            if piece.url is not None:
                say(f"  {piece.url}")
            # Only line feeds end a line: Python splits at more characters than a terminal does.
            for line in piece.text.split("\n"):
                say(f"    {line.expandtabs(4)}")
        say("")
