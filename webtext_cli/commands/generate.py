"""`webtext generate`."""

from __future__ import annotations

from typing import Any

import click

from pipelines import storage
from pipelines.corpus_config import check_corpus
from pipelines.engine.run import RunOptions
from pipelines.format import to_json
from pipelines.model.inference.options import SamplesConfig, read_prompts
from webtext_cli.console import make_progress, print_summary, say
from webtext_cli.options import config_of_flags, config_options, corpus_option, output_options, overwrite_option
from webtext_cli.parameters import Command


@click.command("generate", cls=Command)
@corpus_option
@click.option("--model", metavar="DIR", help="Folder of pretrain or export. [default: pretrain in the corpus folder]")
@click.option(
    "--best",
    is_flag=True,
    help="Use the checkpoint with the lowest held-out loss (pretrain --keep-best) instead of the last weights.",
)
@click.option(
    "--prompt", "-p", "prompts", metavar="PROMPT", multiple=True, help="Text to continue. [default: a new document]"
)
@click.option("--prompt-file", metavar="PATH", help="File of prompts: one per line, or JSONL with `prompt` or `text`.")
@config_options(SamplesConfig)
@click.option("--output", "-o", metavar="FILE", help="Write the samples to a JSONL file instead of standard output.")
@overwrite_option
@output_options("Print one JSON object per sample; with --output, the summary.")
def command(
    corpus: str,
    model: str | None,
    best: bool,
    prompts: tuple[str, ...],
    prompt_file: str | None,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    **sampling: Any,
) -> None:
    """Sample text from a trained model.

    Reads a folder of pretrain (if unfinished, its latest checkpoint) or export. A sample ends at <|endoftext|> or
    after --max-tokens. The same options and seed give the same samples. With --output, re-run the same command to
    resume an interrupted run.

    \b
    Examples:
      webtext generate --corpus my-corpus
      webtext generate --prompt "The history of" --samples 3 --temperature 0.8
      webtext generate --samples 1000 --max-tokens 256 --output samples.jsonl
      webtext generate --model exported --prompt-file prompts.jsonl -o out.jsonl
    """
    from pipelines.model import require_torch

    require_torch()
    from pipelines.model.inference.sampling import Sampler, write_samples

    config = config_of_flags(SamplesConfig, sampling)
    if model is None:
        check_corpus(corpus, "--model")
    if output is not None:
        storage.check_replaceable(output, overwrite)  # before the model is loaded
    all_prompts = [*prompts, *(read_prompts(prompt_file) if prompt_file is not None else [])] or [""]
    sampler = Sampler(model or storage.join(corpus, "pretrain"), all_prompts, config, config.device, best=best)
    if output is not None:
        run_options = RunOptions(overwrite=overwrite, progress=make_progress(quiet))
        print_summary(write_samples(sampler, config.samples, output, run_options), as_json)
        return
    for batch in sampler.batches(config.samples):
        for sample in sampler.draw(batch):
            heading = f"--- sample {sample.number + 1}" + (f" of {sample.prompt!r}" if sample.prompt else "")
            say(to_json(sample) if as_json else f"{heading}\n{sample.prompt}{sample.text}\n")
