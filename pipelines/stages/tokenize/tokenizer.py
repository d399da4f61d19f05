"""The tokenizer of an encoding process: loaded once, and every document is plain text to it."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os

from tokenizers import Tokenizer

from pipelines.core import storage
from pipelines.core.errors import InputError
from pipelines.core.tokenizer_formats import parse_tokenizer


@functools.lru_cache(maxsize=1)
def load_tokenizer(path: str, sha256: str) -> Tokenizer:
    """Return the tokenizer in a file, loaded once in a process; `sha256` of its bytes tells whether it is the same."""
    data = storage.read_bytes(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(f"{path}: has changed while documents were encoded; run `webtext tokenize` again")
    return parse_tokenizer(data, path)


def use_one_thread_in_a_worker() -> None:
    """Keep `tokenizers` from starting a thread a core in each of several worker processes."""
    if multiprocessing.parent_process() is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
