"""`webtext generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pipelines.core import storage
from pipelines.core.errors import InputError, UsageError
from webtext_cli.options import corpus_option, debug_option

if TYPE_CHECKING:
    from pipelines.model.sampling import Sample


@click.command("generate")
@corpus_option
@click.option("--model", metavar="DIR", help="A folder of pretrain or export, if it is not the corpus folder's.")
@click.option("--prompt", "-p", "prompts", multiple=True, help="Text to go on from (repeatable); none: a new document.")
@click.option("--prompt-file", metavar="PATH", help="More prompts, one a line.")
@click.option("--samples", "-n", type=click.IntRange(1), default=1, show_default=True, help="Texts for each prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=200, show_default=True, help="Where a text is cut off.")
@click.option(
    "--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="0 takes the likeliest token."
)
@click.option(
    "--top-k", type=click.IntRange(0), default=40, show_default=True, help="Draw from the k likeliest tokens; 0: all."
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Draw from the likeliest tokens whose sum reaches p; 1: all.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed, another text.")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to compute."
)
@click.option("--output", "-o", metavar="FILE", help="Write the samples as JSONL, not to standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a sample.")
@debug_option
def command(
    corpus: str,
    model: str | None,
    prompts: tuple[str, ...],
    prompt_file: str | None,
    samples: int,
    device: str,
    output: str | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Sample text from a trained model.

    Reads what pretrain wrote (of an unfinished training: its latest checkpoint) or an exported folder. A text ends
    where the model writes <|endoftext|>. Equal options and seed give equal text.

    \b
    Example:
      webtext generate --corpus my-corpus
      webtext generate --corpus my-corpus --prompt "The history of" --samples 3 --temperature 0.8
      webtext generate --model exported --prompt-file prompts.txt --output samples.jsonl
    """
    from pipelines.model.requirements import require_torch

    require_torch()
    from pipelines.model.sampling import SamplingOptions, generate

    asked = [*prompts, *_read_prompts(prompt_file)] or [""]
    folder = model or storage.join(corpus, "pretrain")
    drawn = generate(folder, asked, samples, SamplingOptions(**sampling), device)
    if output is not None:
        _write(drawn, output)
        return
    for sample in drawn:
        click.echo(_line(sample) if as_json else _shown(sample))


def _read_prompts(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        text = storage.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text ({error})") from error
    # Not splitlines(): form feeds and U+2028 may stand within a prompt.
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError(f"--prompt-file {path}: holds no line with a prompt")
    return lines


def _write(samples: Iterator[Sample], path: str) -> None:
    with storage.atomic_write(path) as stream:
        for sample in samples:
            stream.write((_line(sample) + "\n").encode())


def _line(sample: Sample) -> str:
    return json.dumps(sample.to_json(), ensure_ascii=False)


def _shown(sample: Sample) -> str:
    heading = f"--- sample {sample.number + 1}" + (f" of {sample.prompt!r}" if sample.prompt else "")
    return f"{heading}\n{sample.prompt}{sample.text}\n"
