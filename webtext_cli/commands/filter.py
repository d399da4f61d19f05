"""`webtext filter`."""

from __future__ import annotations

from typing import Any

import click

from pipelines.build import CorpusConfig
from pipelines.engine.config import flag_of
from pipelines.errors import UsageError
from pipelines.stages.filter.config import FilterConfig
from webtext_cli.console import print_summary
from webtext_cli.options import DOCUMENTS_HELP, Shared, check_disjoint, config_options, stage_config, stage_options

_SAMPLE = 10_000
_ABOUT_RULES = ("profile", "rule", "set", "language", "language_score", "quality_alpha")


@click.command("filter")
@click.option("--rules", metavar="FILE", help="Python file with rules of your own: its functions.")
@click.option("--quality-model", metavar="DIR", help="Quality model that --train-quality wrote.")
@click.option("--explain", metavar="ID|URL", help="Show what every rule says of one document; write nothing.")
@click.option("--dry-run", is_flag=True, help="Show what would be dropped of a sample; write nothing.")
@click.option("--sample", type=click.IntRange(1), show_default=str(_SAMPLE), help="With --dry-run, how many documents.")
@click.option(
    "--train-quality",
    metavar="PATH",
    multiple=True,
    help="Train a quality model on these documents of good quality (repeatable), and write it to --output.",
)
@click.option(
    "--against", metavar="PATH", multiple=True, help="With --train-quality: unfiltered documents (repeatable)."
)
@config_options(FilterConfig)
@stage_options(DOCUMENTS_HELP)
def command(
    shared: Shared,
    rules: str | None,
    quality_model: str | None,
    explain: str | None,
    dry_run: bool,
    sample: int | None,
    train_quality: tuple[str, ...],
    against: tuple[str, ...],
    **flags: Any,
) -> None:
    """Drop documents by quality rules, language, or a classifier.

    The paper says no more than "some heuristic based cleaning"; the default rules are mild ones of our own. Published
    ones are the profiles gopher-quality, gopher-repetition, c4 and fineweb. Every drop has its rule and value.

    \b
    Examples:
      webtext filter --corpus my-corpus --language en
      webtext filter --corpus my-corpus --profile gopher-repetition --profile gopher-quality --dry-run
      webtext filter --corpus my-corpus --profile c4 --set too_few_sentences=3
      webtext filter -i docs.parquet --rules my_rules.py --explain http://example.com/page
      webtext filter --train-quality good/ --against raw/ -o quality-model
    """
    from pipelines.stages.filter import stage
    from webtext_cli.tables import documents as tables

    config = stage_config(FilterConfig, "filter", shared.corpus, flags)
    if bool(train_quality) != bool(against):
        raise UsageError("--train-quality and --against belong together: good documents, and unfiltered ones")
    if sum(map(bool, (explain, dry_run, train_quality))) > 1:
        raise UsageError("--explain, --dry-run and --train-quality exclude each other")
    if sample and not dry_run:
        raise UsageError("--sample has no effect without --dry-run; omit it")
    if (explain or dry_run) and (shared.output or shared.overwrite):
        raise UsageError("--explain and --dry-run write nothing; omit --output and --overwrite")
    if train_quality:
        from pipelines.stages.filter.quality import train_quality as train

        if not shared.output:
            raise UsageError("--train-quality needs --output, the folder of the model")
        others = {"input": shared.input, "rules": rules, "quality_model": quality_model, **flags}
        for name in ("input", "rules", "quality_model", *_ABOUT_RULES):
            if others[name] not in (None, ()):
                raise UsageError(f"{flag_of(name)} has no effect with --train-quality; omit it")
        check_disjoint(shared.output, [*train_quality, *against])
        card = train(train_quality, against, shared.output, config, shared.run_options(), seed=config.seed)
        tables.print_card(shared.output, card, shared.as_json)
        return
    paths = CorpusConfig(shared.corpus).paths("filter")
    rules, quality_model = rules or paths.get("rules"), quality_model or paths.get("quality_model")
    documents, options = shared.input_of("filter"), shared.run_options()
    if explain or dry_run:
        from pipelines.records.inputs import open_configured

        document_filter = stage.DocumentFilter.open(config, rules, quality_model)
        source = open_configured(documents, config, options)
        if explain:
            tables.print_filtering(stage.explain(document_filter, source, explain), shared.as_json)
        else:
            tables.print_funnel(stage.sample_funnel(document_filter, source, sample or _SAMPLE), shared.as_json)
        return
    output = shared.stage_output("filter")
    check_disjoint(output, [path for path in (rules, quality_model) if path])
    summary = stage.filter(
        config, documents=documents, output=output, options=options, rules=rules, quality_model=quality_model
    )
    print_summary(summary, shared.as_json)
