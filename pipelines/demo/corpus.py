"""Lays out the demo's corpus folder: its `webtext.toml`, the dump, and the texts for the overlap report."""

from __future__ import annotations

import inspect
import json

from pipelines.core import storage
from pipelines.core.config import CONFIG_FILE
from pipelines.core.errors import UsageError
from pipelines.demo.pages import topic_texts
from pipelines.demo.submissions import DUMP_NAME, write_dump
from pipelines.pipeline import PIPELINE

VOCABULARY_SIZE = 4096

_MARKER = "demo.txt"
_MARKER_TEXT = b"This folder was made by `webtext demo`; its pages are Python's own documentation. It can be deleted.\n"

_TOML = """\
# The demo's corpus: the whole line on the pages of Python's documentation server.
# `webtext build` in this folder runs what is missing; the pages themselves are only there while `webtext demo` runs.

[build]
stages = {stages}

[scrape]
dumps = ["dumps/{dump}"]
shards = 4

[fetch]
# One host is one machine here, and it is ours: no pause between its pages.
per_host_delay_s = 0.0
contact = "https://modules.pydoc.example/"

[train-bpe]
vocab_size = {vocabulary_size}

[pretrain]
preset = "tiny"
checkpoint_every = 300
log_every = 100

[overlap-report]
benchmarks = ["language-reference=benchmarks/language-reference.jsonl", "builtins=benchmarks/builtins.jsonl"]
"""


def write_demo_corpus(corpus: str) -> None:
    """Write what the demo's stages read, where it is not there yet.

    Raises UsageError for a folder that holds anything but a demo: the demo must never touch a real corpus.
    """
    marker = storage.join(corpus, _MARKER)
    if not storage.exists(marker):
        if names := storage.list_folder(corpus):
            raise UsageError(f"{corpus}: is not empty ({names[0]}, ...) and no demo's; name a new folder with --corpus")
        storage.write_bytes(marker, _MARKER_TEXT)
    stages = json.dumps([stage.name for stage in PIPELINE])
    text = _TOML.format(stages=stages, dump=DUMP_NAME, vocabulary_size=VOCABULARY_SIZE)
    if not storage.exists(storage.join(corpus, CONFIG_FILE)):
        storage.write_bytes(storage.join(corpus, CONFIG_FILE), text.encode())
    _write_lines(storage.join(corpus, "benchmarks", "language-reference.jsonl"), topic_texts())
    _write_lines(storage.join(corpus, "benchmarks", "builtins.jsonl"), _builtin_docstrings())
    dump = storage.join(corpus, "dumps", DUMP_NAME)
    if not storage.exists(dump):
        write_dump(dump)


def _builtin_docstrings() -> dict[str, str]:
    """Return the docstrings of the built-in functions and types."""
    import builtins

    named = {name: inspect.getdoc(getattr(builtins, name)) for name in sorted(dir(builtins)) if name[0] != "_"}
    return {name: doc for name, doc in named.items() if doc}


def _write_lines(path: str, texts: dict[str, str]) -> None:
    if storage.exists(path):
        return
    lines = [json.dumps({"id": name, "text": text}, ensure_ascii=False) for name, text in texts.items()]
    storage.write_bytes(path, ("\n".join(lines) + "\n").encode())
