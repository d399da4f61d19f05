"""`webtext export`."""

from __future__ import annotations

import click

from pipelines.corpus_config import check_corpus
from pipelines.engine.run import RunOptions
from pipelines.storage import join
from webtext_cli.console import make_progress, print_summary
from webtext_cli.options import corpus_option, output_options, overwrite_option
from webtext_cli.parameters import Command


@click.command("export", cls=Command)
@corpus_option
@click.option("--model", metavar="DIR", help="Folder of pretrain or finetune. [default: the one in the corpus folder]")
@click.option(
    "--best",
    is_flag=True,
    help="Export the checkpoint with the lowest held-out loss (pretrain --keep-best) instead of the last weights.",
)
@click.option("--output", "-o", metavar="DIR", help="Output folder. [default: export in the corpus folder]")
@overwrite_option
@output_options()
def command(
    corpus: str, model: str | None, best: bool, output: str | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Write a trained model as a Hugging Face folder.

    Writes weights, config, tokenizer and a model card; transformers loads the folder and computes the same logits. If
    training has not finished, exports the latest checkpoint. A fine-tuned model becomes a
    GPT2ForSequenceClassification.

    \b
    Examples:
      webtext export --corpus my-corpus
      webtext export --corpus my-corpus --best
      webtext export --model my-corpus/pretrain --output my-gpt2
      webtext export --model my-corpus/finetune/cola --output my-classifier
    """
    from pipelines.model import require_torch

    require_torch()
    from pipelines.model.io.export import ExportConfig, export

    if model is None:
        check_corpus(corpus, "--model")
    summary = export(
        ExportConfig(best=best),
        model=model or join(corpus, "pretrain"),
        output=output or join(corpus, "export"),
        options=RunOptions(overwrite=overwrite, progress=make_progress(quiet)),
    )
    print_summary(summary, as_json)
