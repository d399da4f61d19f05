"""`webtext finetune`."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from pipelines.corpus_config import check_corpus
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.finetuning.config import FineTuneConfig
from pipelines.storage import join, read_json
from webtext_cli.console import make_progress, print_result, print_summary
from webtext_cli.options import (
    check_disjoint,
    config_of_flags,
    config_options,
    corpus_option,
    output_options,
    overwrite_option,
)
from webtext_cli.parameters import Command


@click.command("finetune", cls=Command)
@corpus_option
@click.option("--model", metavar="DIR", help="Folder of pretrain, export or transformers. [default: the corpus's]")
@click.option("--task", metavar="NAME=FILES", required=True, help="Task, or TOML file of your own, and its files or "
              "folder; names say which are train and dev.")  # fmt: skip
@click.option("--validation", metavar="FILES", help="Validation files; those of --task are then all for training.")
@click.option("--test", metavar="FILES", help="Test files without labels, for predictions in GLUE's format.")
@click.option("--checkpoints", is_flag=True, help="Fine-tune all checkpoints of --model, a folder of pretrain.")
@click.option("--output", "-o", metavar="DIR", help="Output folder. [default: finetune/NAME in the corpus folder]")
@config_options(FineTuneConfig)
@overwrite_option
@output_options()
def command(
    corpus: str, model: str | None, task: str, validation: str | None, test: str | None,
    checkpoints: bool, output: str | None, overwrite: bool, as_json: bool, quiet: bool, **flags: Any,
) -> None:  # fmt: skip
    """Fine-tune a model on a task, as GPT-1 was.

    Writes the weights that are best on the validation set, results.json, finetune.html and the predictions. Re-run the
    same command to resume an interrupted run.

    \b
    Examples:
      webtext finetune --model exported --task 'cola=CoLA/*.tsv'
      webtext finetune --model exported --task 'sst-2=SST-2/*.tsv' --set epochs=1
      webtext finetune --task mrpc=train.txt --validation test.txt
      webtext finetune --model exported --task my-task.toml=my-files
      webtext finetune --task rte=RTE --seeds 3 --checkpoints
    """
    config = config_of_flags(FineTuneConfig, flags)
    name, equals, files = task.partition("=")
    if not equals:
        raise UsageError("--task: expected NAME=FILES, such as cola=CoLA, or my-task.toml=FILES")
    from pipelines.evaluation.definitions import find_files, find_task
    from pipelines.model import require_torch

    definition = find_task(name)
    paths = [find_files(path) if path else () for path in (files, validation, test)]
    require_torch()
    from pipelines.finetuning.stage import RESULTS, finetune_sweep

    if model is None:
        check_corpus(corpus, "--model")
    model, output = model or join(corpus, "pretrain"), output or join(corpus, "finetune", definition.name)
    check_disjoint(output, [model, *(path for group in paths for path in group)])
    summaries = finetune_sweep(
        dataclasses.replace(config, log_every=0) if quiet else config, task=definition, files=paths[0],
        validation=paths[1], test=paths[2], model=model, output=output, checkpoints=checkpoints,
        options=RunOptions(overwrite=overwrite, progress=make_progress(quiet)),
    )  # fmt: skip
    if as_json and (checkpoints or config.seeds > 1):
        print_result(read_json(join(output, RESULTS)), as_json, lambda _: None)
        return
    for summary in summaries:
        print_summary(summary, as_json)
