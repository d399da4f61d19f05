"""`webtext generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pipelines.core import storage
from pipelines.core.config import make_config
from pipelines.core.run import RunOptions
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.prompts import read_prompts
from webtext_cli.console import make_progress, print_summary
from webtext_cli.options import config_options, corpus_option, debug_option

if TYPE_CHECKING:
    from pipelines.model.inference.sampling import Sample


@click.command("generate")
@corpus_option
@click.option("--model", metavar="DIR", help="A folder of pretrain or export, if it is not the corpus folder's.")
@click.option("--prompt", "-p", "prompts", multiple=True, help="Text to go on from (repeatable); none: a new document.")
@click.option(
    "--prompt-file", metavar="PATH", help="More prompts: one a line, or JSONL with a `prompt` or `text` in each record."
)
@click.option("--samples", "-n", type=click.IntRange(1), default=1, show_default=True, help="Texts for each prompt.")
@config_options(SamplingOptions)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to compute."
)
@click.option("--output", "-o", metavar="FILE", help="Write the samples as JSONL, not to standard output.")
@click.option("--overwrite", is_flag=True, help="Replace an --output that is there, or parts of another run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a sample; with --output, the summary.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@debug_option
def command(
    corpus: str,
    model: str | None,
    prompts: tuple[str, ...],
    prompt_file: str | None,
    samples: int,
    device: str,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    **sampling: Any,
) -> None:
    """Sample text from a trained model.

    Reads what pretrain wrote (of an unfinished training: its latest checkpoint) or an exported folder. A text ends
    where the model writes <|endoftext|>. Equal options and seed give equal text. With --output, a run that was stopped
    goes on when the same command is given again.

    \b
    Example:
      webtext generate --corpus my-corpus
      webtext generate --corpus my-corpus --prompt "The history of" --samples 3 --temperature 0.8
      webtext generate --corpus my-corpus --samples 1000 --max-tokens 256 --output samples.jsonl
      webtext generate --model exported --prompt-file prompts.jsonl --output continued.jsonl
    """
    from pipelines.model.requirements import require_torch

    require_torch()
    from pipelines.model.inference.samples_file import json_line, refuse_existing, write_samples
    from pipelines.model.inference.sampling import Sampler

    given = {name: value for name, value in sampling.items() if value is not None}
    options = make_config(SamplingOptions, {}, given, "command line")
    if output is not None:
        refuse_existing(output, overwrite)  # before the model is loaded
    asked = [*prompts, *(read_prompts(prompt_file) if prompt_file is not None else [])] or [""]
    sampler = Sampler(model or storage.join(corpus, "pretrain"), asked, options, device)
    if output is not None:
        run_options = RunOptions(overwrite=overwrite, progress=make_progress(quiet))
        print_summary(write_samples(sampler, samples, output, run_options), as_json)
        return
    for batch in sampler.batches(samples):
        for sample in sampler.draw(batch):
            click.echo(json_line(sample) if as_json else _shown(sample))


def _shown(sample: Sample) -> str:
    heading = f"--- sample {sample.number + 1}" + (f" of {sample.prompt!r}" if sample.prompt else "")
    return f"{heading}\n{sample.prompt}{sample.text}\n"
