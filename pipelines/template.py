"""The commented `webtext.toml` of a new corpus, made from the stages' config dataclasses."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import Any

from pipelines.build import DEFAULT_STAGES
from pipelines.core.config import OptionSpec, spec_of
from pipelines.pipeline import PIPELINE, StageSpec

_HEAD = """\
# The corpus in this folder: which stages are run, and how.
# Every option is shown with its default, commented out; take away the "# " to change one. An option that is not set
# without its line is shown with an example.
# Relative paths are meant from this folder.

[build]
stages = {stages}
"""

_FILES = {
    "dumps": ("Reddit's monthly submission dumps: files, folders or globs.", '["dumps/RS_*"]'),
    "counts": (
        "Counts of words to train on instead of documents: folders of train-bpe, or Parquet files.",
        '["other-corpus/train-bpe"]',
    ),
    "compare": ("A tokenizer to show beside the trained one on its report card.", '"gpt2"'),
    "tokenizer": ("The tokenizer to use instead of the one of train-bpe.", '"gpt2"'),
    "init_from": ("Weights to begin with: a folder of a GPT-2, or nanoGPT's ckpt.pt.", '"gpt2"'),
    "index": ("The index of overlap-index to ask instead of the documents.", '"overlap-index"'),
    "benchmarks": (
        "Benchmarks to look for, each NAME=PATH, or the name of one that overlap-report --list-benchmarks shows.",
        '["wikitext-2/test=benchmarks/wikitext2-test.txt"]',
    ),
    "samples": ("Texts that a model generated, to show how they overlap.", '"samples.jsonl"'),
}


def config_template() -> str:
    """Return the text of a new `webtext.toml`, with a table for every stage and a comment for every option."""
    head = _HEAD.format(stages=json.dumps(list(DEFAULT_STAGES)))
    return "\n".join([head, *(_table(stage) for stage in PIPELINE)])


def _table(stage: StageSpec) -> str:
    lines = [f"[{stage.name}]"]
    for key in (*([stage.files] if stage.files else []), *stage.paths):
        words, example = _FILES[key]
        lines += [f"# {words}", f"# {key} = {example}"]
    for field in dataclasses.fields(stage.config_type()):
        spec = spec_of(field)
        is_set = field.default is not None
        words = spec.help + _bounds(spec) + ("" if is_set else " Not set; an example:")
        lines += [f"# {line}" for line in textwrap.wrap(words, 110, break_on_hyphens=False)]
        lines.append(f"# {field.name} = {_toml_value(field.default if is_set else _example(spec))}")
    return "\n".join(lines) + "\n"


def _example(spec: OptionSpec) -> Any:
    return spec.choices[0] if spec.choices and spec.example is None else spec.example


def _bounds(spec: OptionSpec) -> str:
    if spec.choices:
        return f" One of: {', '.join(spec.choices)}."
    low = [] if spec.minimum is None else [f"at least {spec.minimum:.10g}"]
    high = [] if spec.maximum is None else [f"at most {spec.maximum:.10g}"]
    return f" ({', '.join(low + high)})" if low or high else ""


def _toml_value(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
