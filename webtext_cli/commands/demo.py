"""`webtext demo`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pipelines.engine.run import Summary
from pipelines.errors import WebtextError
from pipelines.extras import install_command
from pipelines.format import format_duration, to_json
from webtext_cli.console import make_progress, say
from webtext_cli.options import StageCall, stage_command

_CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
_PROMPT = "Return a"
_SAMPLE_TOKENS = 80
_SHOWN_DROPS = 3
_RESULTS = {
    "index.html": "stages and reports (for a browser)",
    "scrape/links-00000.parquet": "links with their submissions",
    "fetch/pages-00000.warc.gz": "the pages as received",
    "dedup/clusters.parquet": "groups of duplicates",
}


@stage_command("demo", corpus="webtext-demo")
def command(call: StageCall) -> None:
    """Run the whole pipeline on a small local web, offline.

    The web is Python's own documentation server on loopback: about 380 pages. The demo writes a submissions dump that
    links to them and runs every stage on it, down to a small GPT-2, a sample of its text, an evaluation, and an overlap
    report; without torch, all but the model, and without tantivy, all but the search index. It connects to no other
    machine. Re-run it to resume.

    \b
    Examples:
      webtext demo
      webtext demo --corpus my-demo
    """
    from pipelines import storage
    from pipelines.build import build, write_index
    from pipelines.demo.corpus import write_demo_corpus
    from pipelines.demo.web import demo_web
    from pipelines.model import require_torch

    has_torch = False
    with contextlib.suppress(WebtextError):
        require_torch()
        has_torch = True
    missing = {name for name, is_there in (("pretrain", has_torch), ("search", find_spec("tantivy"))) if not is_there}
    write_demo_corpus(call.corpus)
    options = dataclasses.replace(
        call.run_options(), progress=make_progress(call.quiet, brief=True), discard_pages=True
    )
    with demo_web():
        stages = [name for name in call.settings.stages(None, None) if name not in missing]
        show = None if call.as_json else lambda summary: say(_stage_line(summary))
        summaries = build(call.corpus, stages, options, show)
    sample, results = None, []
    if has_torch:
        from pipelines.demo.evaluation import evaluate_demo
        from pipelines.model.inference.options import SamplingOptions
        from pipelines.model.inference.sampling import generate

        model = storage.join(call.corpus, "pretrain")
        (sample,) = generate(model, [_PROMPT], 1, SamplingOptions(max_tokens=_SAMPLE_TOKENS))
        results = evaluate_demo(call.corpus, options)
    write_index(call.corpus, options.progress.note)
    if call.as_json:
        say(to_json({"stages": [summary.to_json() for summary in summaries], "sample": sample, "evaluation": results}))
        return
    if sample is not None:
        _print_model(sample.prompt + sample.text, results)
    say("\nResults:")
    for path, content in _RESULTS.items():
        say(f"  {call.corpus}/{path:<30} {content}")
    # The bare name if it is on PATH, else the path by which it was started.
    program = "webtext" if shutil.which("webtext") else os.path.relpath(sys.argv[0])
    say(f"Next:\n  {program} browse --corpus {call.corpus}\n  {program} status --corpus {call.corpus} --verify")
    if has_torch:
        say(f'  {program} generate --corpus {call.corpus} --prompt "The module"')
    say(f"  {program} init my-corpus")
    if not has_torch:
        say("\npretrain, generate and evaluate need torch: to add them, re-run the demo after")
        say(f"  {install_command('train')}")
        say("which, on Linux, has gigabytes for GPUs. For CPUs only, run before it\n  " + _CPU_TORCH)


def _stage_line(summary: Summary) -> str:
    """Return a line about a stage, wrapped: records in, records out, time, and the most frequent reasons for drops."""
    drops = sorted(summary.dropped.items(), key=lambda drop: -drop[1])
    reasons = [f"{count:,}\xa0{reason}" for reason, count in drops[:_SHOWN_DROPS]]
    if other := sum(count for _, count in drops[_SHOWN_DROPS:]):
        reasons.append(f"{other:,}\xa0other")
    counts = f"{summary.records_in:>5,} in {summary.records_out:>5,} out  {format_duration(summary.seconds):>8}"
    line = f"{summary.stage:<17}{counts}" + (f"  dropped: {', '.join(reasons)}" if reasons else "")
    return textwrap.fill(line, 80, subsequent_indent=" " * 19).replace("\xa0", " ")


def _print_model(sample: str, results: Sequence[Mapping[str, Any]]) -> None:
    from pipelines.reports.evaluation import format_figure, metric_title

    figures = "\n".join(
        f"    {result['title'] + ', ' + metric_title(figure):<45}"
        f"{format_figure(figure['value']):>8} ± {format_figure(figure['error'])}"
        for result in results
        for figure in result["metrics"]
    )
    text = "\n".join("    " + line for line in sample.splitlines())
    say(
        f"""
A sample of the model's text, from the prompt {_PROMPT!r}:

{text}

Evaluation, with standard errors:

{figures}"""
    )
