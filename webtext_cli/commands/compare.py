"""`webtext compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines.comparison.config import CompareConfig
from pipelines.errors import format_message
from pipelines.format import format_bytes, format_duration, format_number, format_rounded, plural
from pipelines.storage import join
from webtext_cli.console import print_result, print_table, say, say_wrapped
from webtext_cli.options import StageCall, check_disjoint, config_of_flags, config_options, stage_command


@stage_command("compare", corpus=None)
@click.argument("corpora", nargs=-1, required=True, metavar="[NAME=]CORPUS...")
@click.option("--output", "-o", "corpus", metavar="DIR", required=True, help="Folder of the comparison.")
@click.option("--plan", "is_plan", is_flag=True, help="Print what the comparison would cost, and exit.")
@config_options(CompareConfig)
def command(call: StageCall, corpora: tuple[str, ...], is_plan: bool, **flags: Any) -> None:
    """Train small models on corpora, and say which corpus is better, and how sure that is.

    A corpus is a corpus folder (its last documents), the folder of a stage, or files. All models have one tokenizer,
    recipe and number of tokens. Re-run the same command to resume, or with more seeds, texts or tasks to add them.

    \b
    Examples:
      webtext compare my-corpus other-corpus --text news=news.jsonl -o comparison
      webtext compare c/extract c/filter --text news=news.jsonl -o out --seeds 5
      webtext compare a=a.jsonl.zst b=b/*.parquet --task hellaswag -o comparison
      webtext compare my-corpus other-corpus --preset gpt2 -o comparison --plan
    """
    from pipelines.comparison.corpora import split_name
    from pipelines.model import require_torch

    require_torch()
    config, output = config_of_flags(CompareConfig, flags), call.corpus
    check_disjoint(output, [split_name(value)[1] for value in (*corpora, *config.text)])
    arguments: dict[str, Any] = {"corpora": corpora, "output": output, "options": call.run_options()}
    from pipelines.comparison.stage import PAGE, compare, plan_comparison

    if is_plan:
        print_result(plan_comparison(config, **arguments), call.as_json, _print_plan)
        return
    print_result(compare(config, **arguments), call.as_json, print_comparison)
    if not call.as_json:
        say(f"{format_message(join(output, PAGE))}  curves, intervals and protocol (open in a browser)")


def print_comparison(content: Mapping[str, Any]) -> None:
    """Print a row per pair of corpora and measure, and the verdicts."""
    measures = {measure["name"]: measure for measure in content["measures"]}
    rows = []
    for row in content["comparisons"]:
        measure, a, b = measures[row["measure"]], row["a"], row["b"]
        means = (format_number(sum(values) / len(values)) for values in (measure["values"][a], measure["values"][b]))
        interval = "" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}"
        needed = row["seeds_needed"]
        verdict = row["better"] or ("not distinguishable" + f"; about {needed} seeds" * bool(needed))
        if row["p_adjusted"] is None:
            verdict = "no interval" if measure["decides"] else "does not decide"
        rows.append([f"{a} - {b}", row["measure"], *means, f"{row['difference']:+.4f}", interval, verdict])
    print_table(["pair", "measure", "first", "second", "difference", "95% interval", "better"], rows, text_columns=True)
    for pair in content["summary"]:
        say_wrapped(pair["text"])


def _print_plan(plan: Mapping[str, Any]) -> None:
    about = "" if plan["are_tokens_exact"] else "about "
    for name, tokens in plan["train_tokens"].items():
        say(f"{name}: {about}{format_rounded(tokens)} training tokens")
    say(
        f"{plural(plan['models'], 'model')} of {plan['parameters']:,} parameters (preset {plan['preset']}, vocabulary "
        f"{plan['vocab_size']:,}), {plan['steps']:,} steps of all {format_rounded(plan['tokens_per_run'])} tokens each"
    )
    say(f"compute: {plan['flops']:.2e} FLOPs; disk: {format_bytes(plan['disk_bytes'])}")
    say(
        f"time: about {format_duration(plan['seconds_per_model'])} per model, {plan['models_at_once']} at once, "
        f"{format_duration(plan['seconds'])} in all, without evaluation (measured on this machine, a few seconds)"
    )
