"""Writes samples as JSONL, a part at a time, so that a run that was stopped goes on.

The parts lie in the folder `FILE.unfinished` until all are there; then they become the file, and the folder goes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence

from pipelines.core import shards, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import read_manifest
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.model.inference.options import SamplesConfig
from pipelines.model.inference.sampling import Batch, Sample, Sampler

_STAGE = Stage("generate", 1)
# A part takes seconds with a small model on a CPU, some minutes with GPT-2's smallest.
_PART_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class PartTask:
    """Some batches whose samples are written together; `most_tokens` if no text ends before its limit."""

    index: int
    batches: tuple[Batch, ...]
    most_tokens: int

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"samples-{self.index:05d}"


def refuse_existing(path: str, overwrite: bool) -> None:
    """Raise InputError for a file that is there and was not meant to be replaced."""
    if storage.is_folder(path):
        raise InputError(f"{path}: is a folder; name a file as --output")
    if storage.exists(path) and not overwrite:
        raise InputError(f"{path}: is there already; --overwrite replaces it, or choose another --output")


def write_samples(sampler: Sampler, samples: int, path: str, options: RunOptions) -> Summary:
    """Write `samples` texts for each prompt, one JSON object a line, in the order of the prompts.

    The same call goes on where an earlier one was stopped. Raises InputError where the file is there already, and
    ChangedRunError where parts of another model, of other prompts or options are, both unless `options.overwrite`.
    """
    refuse_existing(path, options.overwrite)
    config = SamplesConfig(**dataclasses.asdict(sampler.options), samples=samples, device=sampler.device.type)
    prompts = hashlib.sha256(json.dumps(sampler.prompts).encode()).hexdigest()
    folder = f"{path}.unfinished"
    given = {"model": sampler.trained.fingerprint(), "prompts": prompts}
    with stage_run(_STAGE, config, given, folder, options) as run:
        if not run.finished:
            tasks = _tasks(sampler.batches(samples), config.max_tokens)
            draw = functools.partial(_write_part, sampler, folder)
            run.map(draw, tasks, phase="parts", unit="tokens", cost=lambda task: task.most_tokens, serial=True)
        summary = run.finish()
        _join(folder, path)
    storage.remove(folder)
    return dataclasses.replace(summary, output=path)


def json_line(sample: Sample) -> str:
    """Return a sample as one line of JSON, without its end."""
    return json.dumps(sample.to_json(), ensure_ascii=False)


def _tasks(batches: Sequence[Batch], max_tokens: int) -> list[PartTask]:
    most = max(batch.samples for batch in batches) * max_tokens
    together = max(1, _PART_TOKENS // most)
    groups = [tuple(batches[first : first + together]) for first in range(0, len(batches), together)]
    return [
        PartTask(index, group, sum(batch.samples for batch in group) * max_tokens) for index, group in enumerate(groups)
    ]


def _write_part(sampler: Sampler, folder: str, task: PartTask) -> TaskResult:
    drawn = [sample for batch in task.batches for sample in sampler.draw(batch)]
    text = "".join(json_line(sample) + "\n" for sample in drawn)
    written = shards.write_file(folder, f"{task.name}.jsonl", text.encode())
    counts = {"tokens": sum(sample.tokens for sample in drawn), "ended": sum(sample.ended for sample in drawn)}
    return TaskResult(len(drawn), len(drawn), counts=counts, files=(written,))


def _join(folder: str, path: str) -> None:
    with storage.atomic_write(path) as stream:
        for file in read_manifest(folder).files:
            stream.write(storage.read_bytes(storage.join(folder, file.name)))
