"""`webtext evaluate`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import write_index
from pipelines.corpus_config import check_corpus
from pipelines.engine.config import flag_of
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError, format_message
from pipelines.evaluation.config import EvaluateConfig, TaskOptions
from pipelines.progress import Silent
from pipelines.storage import join
from webtext_cli.console import make_progress, print_result, say
from webtext_cli.options import (
    check_disjoint,
    config_of_flags,
    config_options,
    corpus_option,
    output_options,
    overwrite_option,
)
from webtext_cli.parameters import Command


@click.command("evaluate", cls=Command)
@corpus_option
@config_options(TaskOptions)
@click.option("--model", metavar="DIR", help="Folder of pretrain or export. [default: pretrain in the corpus folder]")
@click.option("--output", "-o", metavar="DIR", help="Output folder. [default: evaluate in the corpus folder]")
@config_options(EvaluateConfig)
@overwrite_option
@output_options("Print the results as a JSON array, with --checkpoints one per step.")
def command(
    corpus: str, model: str | None, output: str | None, overwrite: bool, as_json: bool, quiet: bool, **flags: Any
) -> None:
    """Evaluate a model on zero-shot tasks, from local files or data sets.

    Writes a folder per task, with a row per example and results.json, and evaluation.html, which compares all results
    with the paper's. Re-run the same command to resume an interrupted run.

    \b
    Examples:
      webtext evaluate --list-tasks
      webtext evaluate --task lambada=lambada.jsonl --task wikitext-2=test.tokens
      webtext evaluate --model exported --task cbt-cn=cbtest_CN.txt --variant all
      webtext evaluate --model exported --task my-task.toml
      webtext evaluate --task lambada=lambada.jsonl --compare other/evaluate
      webtext evaluate --corpus my-corpus --checkpoints --task lambada=test.jsonl
      torchrun --nproc-per-node 8 --no-python webtext evaluate --task a.toml
    """
    from pipelines.evaluation.definitions import TASK_NAMES, find_task, parse_tasks, read_task
    from webtext_cli.tables.evaluate import print_comparison, print_protocol, print_results, print_steps, print_tasks

    config, chosen = config_of_flags(EvaluateConfig, flags), config_of_flags(TaskOptions, flags)
    if shown := "list_tasks" if chosen.list_tasks else "show_task" if chosen.show_task else "":
        for name, value in {"model": model, "output": output, "overwrite": overwrite, **flags}.items():
            if name != shown and value not in (None, (), False):
                raise UsageError(f"{flag_of(name)} has no effect with {flag_of(shown)}; omit it")
    if chosen.list_tasks:
        print_result([task for task in map(read_task, TASK_NAMES) if task.kind], as_json, print_tasks)
        return
    if chosen.show_task:
        print_result(find_task(chosen.show_task), as_json, print_protocol)
        return
    from pipelines.model import require_torch

    require_torch()
    from pipelines.evaluation import stage
    from pipelines.evaluation.results_page import PAGE, read_results, step_folders, write_page
    from pipelines.model.training.parallel import torchrun_world

    if model is None and not (chosen.rescore and output):
        check_corpus(corpus, "--model")
    tasks = parse_tasks(chosen.task, chosen.variant, chosen.examples, chosen.shots, chosen.shot_seeds)
    is_shown = torchrun_world().is_rank_zero
    progress = make_progress() if is_shown and not quiet else Silent()
    folder, options = output or join(corpus, "evaluate"), RunOptions(overwrite=overwrite, progress=progress)
    for other in chosen.compare:
        read_results(other)  # raises, before anything is computed, if it has none
    results: Any
    if chosen.rescore and chosen.checkpoints:
        if not (steps := step_folders(folder)):
            raise InputError(f"{folder}: has no results of checkpoints; omit --rescore the first time")
        results = {
            step: stage.rescore(config, tasks=tasks, output=path, options=options) for step, path in steps.items()
        }
    elif chosen.rescore:
        results = stage.rescore(config, tasks=tasks, output=folder, options=options)
    else:
        path = model or join(corpus, "pretrain")
        check_disjoint(folder, [path])
        evaluate: Any = stage.evaluate_checkpoints if chosen.checkpoints else stage.evaluate
        results = evaluate(config, tasks=tasks, model=path, output=folder, options=options)
    if not is_shown:
        return
    comparisons = write_page(folder, chosen.compare)
    print_result(results, as_json, print_steps if chosen.checkpoints else print_results)
    if not output:
        write_index(corpus, progress.note)
    if as_json:
        return
    for comparison in comparisons:
        print_comparison(comparison)
    say(f"{format_message(join(folder, PAGE))}  all results in this folder (open in a browser)")
