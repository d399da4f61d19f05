"""Writes the demo's corpus folder: its `webtext.toml`, the dump, and the texts for the overlap report."""

from __future__ import annotations

import inspect
import json
from pydoc_data.topics import topics

from pipelines import storage
from pipelines.demo.submissions import DUMP_NAME, write_dump
from pipelines.engine.config import CONFIG_FILE
from pipelines.errors import UsageError
from pipelines.pipeline import PIPELINE

VOCABULARY_SIZE = 4096

_MARKER = "demo.txt"
_MARKER_TEXT = b"Created by `webtext demo` from Python's own documentation; it can be deleted.\n"

_TOML = """\
# The demo's corpus: the whole pipeline on the pages of Python's documentation server.
# The pages can only be fetched while `webtext demo` runs; `webtext build` re-runs the other stages.

[build]
stages = {stages}

[scrape]
dumps = ["dumps/{dump}"]
shards = 4

[fetch]
# All hosts are this machine, so no delay between requests is needed.
per_host_delay = 0.0
contact = "https://modules.pydoc.example/"

[train-bpe]
vocab_size = {vocabulary_size}

[pretrain]
preset = "tiny"
set = ["steps=480"]
checkpoint_every = 240
log_every = 0

[overlap-report.benchmark]
language-reference = "benchmarks/language-reference.jsonl"
builtins = "benchmarks/builtins.jsonl"
"""


def write_demo_corpus(corpus: str) -> None:
    """Write the inputs of the demo's stages that do not exist yet.

    Raises UsageError for a folder that contains anything but a demo, so that the demo never touches a real corpus.
    """
    marker = storage.join(corpus, _MARKER)
    if not storage.exists(marker):
        if names := storage.list_folder(corpus):
            raise UsageError(f"{corpus}: contains other files ({names[0]}, ...); name a new folder with --corpus")
        storage.write_bytes(marker, _MARKER_TEXT)
    stages = json.dumps([stage.name for stage in PIPELINE])
    text = _TOML.format(stages=stages, dump=DUMP_NAME, vocabulary_size=VOCABULARY_SIZE)
    if not storage.exists(storage.join(corpus, CONFIG_FILE)):
        storage.write_bytes(storage.join(corpus, CONFIG_FILE), text.encode())
    _write_lines(storage.join(corpus, "benchmarks", "language-reference.jsonl"), dict(sorted(topics.items())))
    _write_lines(storage.join(corpus, "benchmarks", "builtins.jsonl"), _builtin_docstrings())
    dump = storage.join(corpus, "dumps", DUMP_NAME)
    if not storage.exists(dump):
        write_dump(dump)


def _builtin_docstrings() -> dict[str, str]:
    """Return the docstrings of the built-in functions and types."""
    import builtins

    docstrings = {name: inspect.getdoc(getattr(builtins, name)) for name in sorted(dir(builtins)) if name[0] != "_"}
    return {name: docstring for name, docstring in docstrings.items() if docstring}


def _write_lines(path: str, texts: dict[str, str]) -> None:
    if storage.exists(path):
        return
    lines = [json.dumps({"id": name, "text": text}, ensure_ascii=False) for name, text in texts.items()]
    storage.write_bytes(path, ("\n".join(lines) + "\n").encode())
