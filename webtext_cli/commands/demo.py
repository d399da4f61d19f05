"""`webtext demo`."""

from __future__ import annotations

import json
import os
import shutil
import sys

import click

from pipelines.core.run import Summary
from webtext_cli.console import duration, print_summary, print_table, say
from webtext_cli.options import Shared, stage_options

_PROMPT = "Return a"
_SAMPLE_TOKENS = 80


@click.command("demo")
@stage_options(only_corpus=True, corpus="webtext-demo")
def command(shared: Shared) -> None:
    """Run the whole line on a small real web, offline.

    The web is the documentation server that every Python carries, on loopback: some 380 real pages. The demo writes a
    submissions dump that links to them and runs every stage on it, down to a small GPT-2, a sample of its text, and an
    overlap report. It asks no other machine. A second run goes on where the first stopped.

    \b
    Example:
      webtext demo
      webtext demo --corpus my-demo
    """
    from pipelines.build import build, build_stages, corpus_tables
    from pipelines.core import storage
    from pipelines.demo.corpus import write_demo_corpus
    from pipelines.demo.web import demo_web
    from pipelines.model.requirements import require_torch

    require_torch()
    from pipelines.model.inference.options import SamplingOptions
    from pipelines.model.inference.sampling import generate

    def show(summary: Summary) -> None:
        if not shared.as_json:
            print_summary(summary, as_json=False)

    write_demo_corpus(shared.corpus)
    with demo_web():
        stages = build_stages(corpus_tables(shared.corpus), None, None)
        summaries = build(shared.corpus, stages, shared.run_options(), show)
    model = storage.join(shared.corpus, "pretrain")
    (sample,) = generate(model, [_PROMPT], 1, SamplingOptions(max_tokens=_SAMPLE_TOKENS))
    if shared.as_json:
        value = {"stages": [summary.to_json() for summary in summaries], "sample": sample.to_json()}
        say(json.dumps(value, ensure_ascii=False))
    else:
        _print_end(shared.corpus, summaries, sample.prompt + sample.text)


def _program() -> str:
    """Return what to type for `webtext`: the name where a shell finds it, else the path it was called by."""
    return "webtext" if shutil.which("webtext") else os.path.relpath(sys.argv[0])


def _print_end(corpus: str, summaries: list[Summary], sample: str) -> None:
    say(f"\nA sample of the model's text, from the prompt {_PROMPT!r}:\n\n{_indented(sample)}\n")
    rows = [
        [
            summary.stage,
            f"{summary.records_in:,}",
            _drops(summary),
            f"{summary.records_out:,}",
            duration(summary.seconds),
        ]
        for summary in summaries
    ]
    print_table(["stage", "in", "dropped", "out", "time"], rows, title="The line, from a submission to a model")
    program = _program()
    say(
        f"""Look at:
  {corpus}/scrape/links-00000.parquet            a link for each page, with its score and its submissions
  {corpus}/fetch/pages-00000.warc.gz             the pages as received
  {corpus}/dedup/clusters.parquet                which documents were duplicates of which
  {corpus}/train-bpe/report.html                 the tokenizer's report card: open in a browser
  {corpus}/pretrain/training.html                the loss, step by step: open in a browser
  {corpus}/overlap-report/report.html            what the corpus holds of Python's language reference: open in a browser
Next:
  {program} status --corpus {corpus} --verify
  {program} generate --corpus {corpus} --prompt "The module"
  {program} init my-corpus        and name your own dumps in my-corpus/webtext.toml"""
    )


def _drops(summary: Summary) -> str:
    return f"{sum(summary.dropped.values()):,}"


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
