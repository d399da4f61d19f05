"""`webtext filter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pipelines.engine.config import flag_of
from pipelines.errors import UsageError, format_message
from pipelines.format import describe_field, format_bytes, format_percent, plural
from webtext_cli.console import print_funnel, print_result, print_table, say, say_wrapped
from webtext_cli.options import DOCUMENTS_HELP, StageCall, check_disjoint, stage_command
from webtext_cli.parameters import Number

_SAMPLE = 10_000
_ABOUT_RULES = ("profile", "rule", "set", "language", "language_score", "redact", "quality_alpha")


@stage_command("filter", DOCUMENTS_HELP)
@click.option("--rules", metavar="FILE", help="Python file with your own rules, one function per rule.")
@click.option("--quality-model", metavar="DIR", help="Quality model that --train-quality wrote.")
@click.option(
    "--explain",
    metavar="URL_OR_ID",
    help="Show what this stage does with one document: the value of every rule; write nothing.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped of a sample; write nothing.")
@click.option("--sample", type=Number(int, 1), show_default=f"{_SAMPLE:,}", help="Number of documents for --dry-run.")
@click.option(
    "--train-quality",
    metavar="PATH",
    multiple=True,
    help="Train a quality model on these good documents and write it to --output.",
)
@click.option("--unfiltered", metavar="PATH", multiple=True, help="With --train-quality: unfiltered documents.")
def command(
    call: StageCall,
    rules: str | None,
    quality_model: str | None,
    explain: str | None,
    dry_run: bool,
    sample: int | None,
    train_quality: tuple[str, ...],
    unfiltered: tuple[str, ...],
) -> None:
    """Drop documents by quality rules, language, or a classifier.

    The paper only mentions "some heuristic based cleaning"; the default rules are mild. The profiles gopher-quality,
    gopher-repetition, c4 and fineweb are published rules. Every drop is recorded with its rule and value.

    \b
    Examples:
      webtext filter --corpus my-corpus --language en
      webtext filter --corpus my-corpus --profile c4 --profile fineweb --dry-run
      webtext filter --corpus my-corpus --profile c4 --set too_few_sentences=3
      webtext filter docs.parquet --rules my_rules.py --explain doc-17
      webtext filter --train-quality good/ --unfiltered raw/ -o quality-model
    """
    config = call.config()
    if bool(train_quality) != bool(unfiltered):
        raise UsageError("--train-quality and --unfiltered must be used together: good documents, and unfiltered ones")
    if sum(map(bool, (explain, dry_run, train_quality))) > 1:
        raise UsageError("--explain, --dry-run and --train-quality cannot be combined")
    if sample and not dry_run:
        raise UsageError("--sample has no effect without --dry-run; omit it")
    if (explain or dry_run) and (call.output or call.overwrite):
        raise UsageError("--explain and --dry-run write nothing; omit --output and --overwrite")
    if train_quality:
        from pipelines.stages.filter.quality import train_quality as train

        if not call.output:
            raise UsageError("--train-quality needs --output, the folder of the model")
        others = {"input": call.input, "rules": rules, "quality_model": quality_model, **call.flags}
        for name in ("input", "rules", "quality_model", *_ABOUT_RULES):
            if others[name] not in (None, ()):
                raise UsageError(f"{flag_of(name)} has no effect with --train-quality; omit it")
        check_disjoint(call.output, [*train_quality, *unfiltered])
        card = train(train_quality, unfiltered, call.output, config, call.run_options(), seed=config.seed)
        print_result(card, call.as_json, _print_card)
        if not call.as_json:
            say(f"{format_message(call.output)}: card.json and weights.npy written")
        return
    files = call.configured(rules=rules, quality_model=quality_model)
    if not (explain or dry_run):
        call.run(**files)
        return
    from pipelines.records.inputs import open_configured
    from pipelines.stages.filter import stage

    documents, options = call.input_files(), call.run_options()
    document_filter = stage.DocumentFilter.open(config, **files)
    source = open_configured(documents, config, options)
    if explain:
        print_result(stage.explain(document_filter, source, explain), call.as_json, _print_explanation)
    else:
        print_result(stage.sample_funnel(document_filter, source, sample or _SAMPLE), call.as_json, _print_funnel)


def _print_explanation(explanation: Mapping[str, Any]) -> None:
    say(f"id   {explanation['id']}\nurl  {explanation['url'] or '–'}")
    rows = [
        [
            rule["rule"],
            rule["statistic"],
            f"{rule['value']:g}",
            f"at most {rule['max']:g}" if rule["min"] is None else f"at least {rule['min']:g}",
            "drop" if rule["drops"] else "",
        ]
        for rule in explanation["values"]
    ]
    if rows:
        print_table(["rule", "statistic", "value", "threshold", ""], rows)
    for name, value in explanation["measured"].items():
        say(describe_field(name, value))
    detail = f" ({explanation['detail']})" if explanation["detail"] else ""
    say_wrapped(f"dropped for {explanation['reason']}{detail}" if explanation["reason"] else "kept")


def _print_funnel(funnel: Mapping[str, Any]) -> None:
    print_funnel("documents", funnel["documents"], funnel["dropped"])
    say(f"{format_bytes(funnel['kept_bytes'])} of {format_bytes(funnel['bytes'])} of text kept; nothing was written")
    for kind, count in funnel["redacted"].items():
        say(f"{kind}: {plural(count, 'placeholder')}")


def _print_card(card: Mapping[str, Any]) -> None:
    """Print what a quality model was trained on and how it does on held-out documents."""
    for side in ("good", "unfiltered"):
        say(f"{side}: {card[side]['sampled']:,} of {card[side]['documents']:,} documents")
    held_out = card["held_out"]
    sizes = f"{held_out['good']:,} good documents, {held_out['unfiltered']:,} others"
    say(f"held out: ROC AUC {held_out['roc_auc']:.4f} ({sizes})")
    rows = [
        [f"{row['score']:g}", *(format_percent(row[side]) for side in ("good", "unfiltered"))]
        for row in held_out["curve"]
    ]
    print_table(["score at least", "good", "unfiltered"], rows)
