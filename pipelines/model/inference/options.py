"""Options of sampling, and prompts from a file; without torch, which `webtext generate --help` must not load."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.errors import InputError
from pipelines.records.reader import file_format, read_records, require_records


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """How tokens are sampled, and how many."""

    max_tokens: int = option(200, "Maximum tokens per sample.", minimum=1)
    temperature: float = option(1.0, "Softmax temperature; 0 selects greedy decoding.", minimum=0.0)
    top_k: int = option(40, "Sample from the k most likely tokens; 0 disables the limit.", minimum=0)
    top_p: float = option(1.0, "Nucleus (top-p) sampling threshold; 1 disables it.", minimum=1e-6, maximum=1.0)
    seed: int = option(0, "Random seed.", minimum=0)


@dataclasses.dataclass(frozen=True)
class SamplesConfig(SamplingOptions):
    """All that determines a file of samples except the model and the prompts; devices round differently."""

    samples: int = option(1, "Samples per prompt.", minimum=1)
    device: str = option("auto", "Device to run on.", choices=("auto", "cpu", "cuda", "mps"))


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a file, which may be compressed; blank lines are skipped.

    Records have a field `prompt`, else `text`. Raises InputError with the line number for invalid UTF-8 or JSON and for
    a record without prompt, and for a file without prompts.
    """
    prompts = []
    advice = "" if file_format(path) == "text" else "; for one prompt per line, name the file .txt"
    for record in read_records(path):
        try:
            [(number, value)] = require_records(path, [record])
        except InputError as error:
            raise InputError(f"{error}{advice}") from error
        # Only \n ends a line: form feeds and U+2028 may be part of a prompt.
        texts = [value.removesuffix("\n").removesuffix("\r")] if isinstance(value, str) else []
        if isinstance(value, dict):
            texts = [value[name] for name in ("prompt", "text") if isinstance(value.get(name), str)]
        if not texts:
            raise InputError(f"{path}:{number}: has no prompt; expected an object with a string prompt or text{advice}")
        prompts.append(texts[0])
    if not prompts:
        raise InputError(f"{path}: has no prompts{advice or '; write one per line'}")
    return prompts
