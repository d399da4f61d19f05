"""`webtext evaluate`."""

from __future__ import annotations

import json
from typing import Any

import click

from pipelines.engine.config import make_config
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.evaluation.config import EvaluateConfig
from pipelines.progress import Silent
from pipelines.storage import join
from webtext_cli.console import make_progress, say
from webtext_cli.options import (
    check_disjoint,
    config_options,
    corpus_option,
    debug_option,
    log_file_option,
    quiet_option,
)


@click.command("evaluate")
@corpus_option
@click.option(
    "--task",
    "tasks",
    metavar="NAME[/SPLIT][=PATH]",
    multiple=True,
    help="Task and its file, or a TOML file of your own task; without a file, the task's data set on the Hugging Face "
    "Hub (repeatable).",
)
@click.option(
    "--examples",
    metavar="NAME[=PATH]",
    multiple=True,
    help="Solved examples of a task, such as its train set, for --shots and thresholds (repeatable).",
)
@click.option("--shots", type=click.IntRange(0), default=0, show_default=True, help="Examples before every question.")
@click.option("--shot-seeds", type=click.IntRange(1), default=1, show_default=True, help="Draws of the shots.")
@click.option("--model", metavar="DIR", help="Folder of pretrain or export. [default: pretrain in the corpus folder]")
@click.option("--output", "-o", metavar="DIR", help="Output folder. [default: evaluate in the corpus folder]")
@click.option("--variant", default="paper", show_default=True, help="Protocol that is followed; all compares them.")
@config_options(EvaluateConfig)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "mps"]),
    default="auto",
    show_default=True,
    help="Device that runs the model; auto: a GPU if there is one.",
)
@click.option("--list-tasks", is_flag=True, help="List the known tasks and exit.")
@click.option("--show-task", metavar="NAME", help="Show every choice of a task's protocol, with its reason, and exit.")
@click.option(
    "--rescore",
    "is_rescored",
    is_flag=True,
    help="Compute the metrics again from the stored answers, without the model.",
)
@click.option(
    "--checkpoints",
    "is_series",
    is_flag=True,
    help="Evaluate all checkpoints of a training, each in a folder step-N of the output.",
)
@click.option(
    "--compare",
    "compared",
    metavar="DIR",
    multiple=True,
    help="Output folder of another model, for paired differences on the same examples (repeatable).",
)
@click.option("--overwrite", is_flag=True, help="Replace results of another model, file or protocol.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print an array of results, with --checkpoints an object with an array per step; or what is listed or shown.",
)
@quiet_option
@log_file_option
@debug_option
def command(
    corpus: str,
    tasks: tuple[str, ...],
    examples: tuple[str, ...],
    shots: int,
    shot_seeds: int,
    model: str | None,
    output: str | None,
    variant: str,
    device: str,
    list_tasks: bool,
    show_task: str | None,
    is_rescored: bool,
    is_series: bool,
    compared: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Evaluate a model on zero-shot tasks, from local files or data sets.

    Every task has a folder in the output, with a row per example and results.json; evaluation.html shows all of them
    next to the paper's. Re-run the same command to resume an interrupted run.

    \b
    Examples:
      webtext evaluate --list-tasks
      webtext evaluate --corpus my-corpus --task lambada=lambada_test.jsonl --task wikitext-2=wiki.test.tokens
      webtext evaluate --model exported --task cbt-cn=cbtest_CN_valid_2000ex.txt --variant all
      webtext evaluate --model exported --task my-task.toml
      webtext evaluate --corpus my-corpus --task lambada=lambada_test.jsonl --compare other-corpus/evaluate
      webtext evaluate --corpus my-corpus --checkpoints --task lambada=lambada_test.jsonl
      torchrun --nproc-per-node 8 --no-python webtext evaluate --model exported --task cbt-cn=cbtest_CN_valid_2000ex.txt
    """
    from pipelines.evaluation.protocols import find_protocol, parse_tasks, read_protocol, task_names
    from webtext_cli.tables.evaluate import print_comparison, print_protocol, print_results, print_steps, print_tasks

    if list_tasks:
        print_tasks([read_protocol(name) for name in task_names()], as_json)
        return
    if show_task:
        print_protocol(find_protocol(show_task), as_json)
        return
    from pipelines.model.requirements import require_torch

    require_torch()
    from pipelines.evaluation.results_page import PAGE, read_results, step_folders, write_page
    from pipelines.evaluation.stage import evaluate, evaluate_checkpoints, rescore
    from pipelines.model.training.parallel import torchrun_world

    given = {name: value for name, value in flags.items() if value is not None}
    config = make_config(EvaluateConfig, {}, given, "command line")
    named = parse_tasks(tasks, variant, examples, shots, shot_seeds)
    is_shown = torchrun_world().is_rank_zero
    progress = make_progress() if is_shown and not quiet else Silent()
    folder, options = output or join(corpus, "evaluate"), RunOptions(overwrite=overwrite, progress=progress)
    for other in compared:
        read_results(other)  # raises, before anything is computed, if it has none
    path = model or join(corpus, "pretrain")
    if not is_rescored:
        check_disjoint(folder, [path])
    arguments: dict[str, Any] = {"tasks": named, "options": options}
    results: Any
    if is_series and is_rescored:
        if not (steps := step_folders(folder)):
            raise InputError(f"{folder}: has no results of checkpoints; run --checkpoints without --rescore first")
        results = {step: rescore(config, output=path, **arguments) for step, path in steps.items()}
    elif is_series:
        results = evaluate_checkpoints(config, model=path, output=folder, device=device, **arguments)
    elif is_rescored:
        results = rescore(config, output=folder, **arguments)
    else:
        results = evaluate(config, model=path, output=folder, device=device, **arguments)
    if not is_shown:
        return
    comparisons = write_page(folder, compared)
    if as_json:
        say(json.dumps(results, ensure_ascii=False))
    else:
        (print_steps if is_series else print_results)(results)
        for comparison in comparisons:
            print_comparison(comparison)
        say(f"{join(folder, PAGE)}  all results in this folder (open in a browser)")
