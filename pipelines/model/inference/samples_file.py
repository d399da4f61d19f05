"""Writes samples as JSONL in parts, so that an interrupted run can be resumed.

The parts are in the folder `FILE.unfinished` until all are complete; then they are concatenated and the folder is
removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from pipelines import storage
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import InputError
from pipelines.model.inference.options import SamplesConfig
from pipelines.model.inference.sampling import Batch, Sample, Sampler
from pipelines.records import shards

_STAGE = Stage("generate", 1)
# A part takes seconds with a small model on a CPU, minutes with the smallest GPT-2.
_PART_TOKENS = 8192

# The index of a part and its batches, whose samples are written together.
Part = tuple[int, Sequence[Batch]]


def check_output(path: str, overwrite: bool) -> None:
    """Raise InputError if the file exists and must not be replaced."""
    if storage.is_folder(path):
        raise InputError(f"{path}: is a folder; name a file as --output")
    if storage.exists(path) and not overwrite:
        raise InputError(f"{path}: already exists; --overwrite replaces it at the end, or choose another --output")


def write_samples(
    sampler: Sampler, samples: int, path: str, options: RunOptions, part_tokens: int = _PART_TOKENS
) -> Summary:
    """Write `samples` samples per prompt, one JSON object per line, in the order of the prompts.

    The same call resumes an interrupted run, after at most `part_tokens` tokens or one batch. Raises InputError if the
    file exists, and ChangedRunError if its parts are of another model, other prompts or options, both unless
    `options.overwrite`.
    """
    check_output(path, options.overwrite)
    config = SamplesConfig(**dataclasses.asdict(sampler.options), samples=samples, device=sampler.device.type)
    prompts = hashlib.sha256(json.dumps(sampler.prompts).encode()).hexdigest()
    inputs = {"model": sampler.trained.fingerprint(), "prompts": prompts}
    folder = f"{path}.unfinished"

    def max_tokens(part: Part) -> int:
        return sum(batch.samples for batch in part[1]) * config.max_tokens

    with stage_run(_STAGE, config, inputs=inputs, output=folder, options=options) as run:
        if not run.finished:
            parts = _split(sampler.batches(samples), config.max_tokens, part_tokens)
            context = sampler, run.output
            run.map(_write_part, parts, context, name=_name, phase="parts", unit="tokens", cost=max_tokens, serial=True)
        summary = run.finish()
        with storage.atomic_write(path) as stream:
            for file in read_manifest(folder).files:
                stream.write(storage.read_bytes(storage.join(folder, file.name)))
    storage.remove(folder)
    return dataclasses.replace(summary, output=path)


def json_line(sample: Sample) -> str:
    """Return a sample as one line of JSON, without the newline."""
    return json.dumps(sample.to_json(), ensure_ascii=False)


def _split(batches: Sequence[Batch], max_tokens: int, part_tokens: int) -> list[Part]:
    batch_tokens = max(batch.samples for batch in batches) * max_tokens
    size = max(1, part_tokens // batch_tokens)
    return [(index, batches[start : start + size]) for index, start in enumerate(range(0, len(batches), size))]


def _name(part: Part) -> str:
    return f"samples-{part[0]:05d}"


def _write_part(part: Part, context: tuple[Sampler, str]) -> TaskResult:
    sampler, folder = context
    samples = [sample for batch in part[1] for sample in sampler.draw(batch)]
    text = "".join(json_line(sample) + "\n" for sample in samples)
    file = shards.write_file(folder, f"{_name(part)}.jsonl", text.encode())
    counts = {"tokens": sum(sample.tokens for sample in samples), "ended": sum(sample.ended for sample in samples)}
    return TaskResult(len(samples), len(samples), counts=counts, files=(file,))
