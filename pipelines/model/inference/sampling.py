"""Samples text from a model with top-k, top-p and temperature, as GPT-2's own samples were drawn (top-k 40).

Samples in a file are written as JSONL in parts, so that an interrupted run can be resumed: the parts are in the folder
`FILE.unfinished` until all are complete; then they are concatenated and the folder is removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pipelines import progress, storage
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import UsageError
from pipelines.format import to_json
from pipelines.model.device import derived_seed, device_config, reproducible, select_device, translate_memory_errors
from pipelines.model.inference.decoding import BatchDecoder, batch_rows, choose_by, continue_texts
from pipelines.model.inference.options import SamplesConfig, SamplingOptions
from pipelines.model.io.model_folder import TrainedModel, open_model
from pipelines.model.network.gpt2 import GPT2
from pipelines.records import shards

_STAGE = Stage("generate", 1)
_MEMORY_ADVICE = "use a smaller model, --device cpu, or a machine with more memory"
# A part of a file takes seconds with a small model on a CPU, minutes with the smallest GPT-2.
_PART_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class Sample:
    """A text that continues a prompt; `ended` says whether the model ended it with `<|endoftext|>`."""

    prompt: str
    number: int
    text: str
    tokens: int
    ended: bool


@dataclasses.dataclass(frozen=True)
class Batch:
    """Samples of one prompt that are decoded together: `samples` of them, numbered from `first`."""

    prompt: int
    first: int
    samples: int


class Sampler:
    """A model on its device, and the prompts that it continues; `best` as for `open_model`.

    Raises InputError if the folder has no model, UsageError for a prompt that is not valid UTF-8, longer than the
    context, or given twice.
    """

    def __init__(
        self, folder: str, prompts: Sequence[str], options: SamplingOptions, device: str = "auto", *, best: bool = False
    ) -> None:
        self.device = select_device(device)
        self.trained = open_model(folder, best=best)
        self.prompts = list(prompts)
        if repeated := [prompt for prompt, count in Counter(prompts).items() if count > 1]:
            raise UsageError(f"prompt {repeated[0][:30]!r} is given twice; use --samples for several samples")
        self.options = options
        self._tokenizer = self.trained.tokenizer()
        self._prompt_ids = [_encode(self._tokenizer, prompt, self.trained) for prompt in self.prompts]
        with translate_memory_errors(_MEMORY_ADVICE):
            self._model = self.trained.model.to(self.device)

    def batches(self, samples: int) -> list[Batch]:
        """Return the batches for `samples` samples per prompt.

        A sample's row in its batch follows from its number alone, and a batch has one prompt.
        """
        rows = batch_rows(self.device)
        return [
            Batch(prompt, first, min(rows, samples - first))
            for prompt in range(len(self.prompts))
            for first in range(0, samples, rows)
        ]

    def draw(self, batch: Batch) -> list[Sample]:
        """Draw the samples of a batch."""
        prompt, end = self.prompts[batch.prompt], self.trained.end_of_text
        numbers = range(batch.first, batch.first + batch.samples)
        seeds = [derived_seed(self.options.seed, number, prompt) for number in numbers]
        prompt_ids = self._prompt_ids[batch.prompt] or [end]
        with reproducible(self.device), translate_memory_errors(_MEMORY_ADVICE):
            texts = sample_tokens(self._model, prompt_ids, self.options, seeds, end_of_text=end)
        return [self._sample(prompt, number, tokens) for number, tokens in zip(numbers, texts, strict=True)]

    def _sample(self, prompt: str, number: int, tokens: list[int]) -> Sample:
        ended = tokens[-1:] == [self.trained.end_of_text]
        text = self._tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False)
        return Sample(prompt=prompt, number=number, text=text, tokens=len(tokens), ended=ended)


def generate(
    folder: str, prompts: Sequence[str], samples: int, options: SamplingOptions, device: str = "auto"
) -> Iterator[Sample]:
    """Yield `samples` samples per prompt; an empty prompt starts a new document.

    Each sample's random numbers follow from seed, prompt and number, so it does not depend on what else is sampled.
    Raises as `Sampler` does.
    """
    sampler = Sampler(folder, prompts, options, device)
    for batch in sampler.batches(samples):
        yield from sampler.draw(batch)


@torch.no_grad()
def sample_tokens(
    model: GPT2,
    prompt: Sequence[int],
    options: SamplingOptions,
    seeds: Sequence[int],
    *,
    end_of_text: int,
    advance: Callable[[int], None] = progress.advance,
) -> list[list[int]]:
    """Return the tokens that follow a prompt, one text per seed, at most `batch_rows` of the device.

    A text has at most `max_tokens` tokens; `end_of_text` ends it. Beyond the context the model sees only the latest
    tokens, see `window_start`. `advance` is called with the number of new tokens. Raises
    InputError if the logits are not finite.
    """
    with device_config(model.wte.weight.device).autocast():
        decoder = BatchDecoder(model, prompt, len(seeds))
        texts = continue_texts(
            decoder.logits,
            decoder.append,
            [options.max_tokens] * len(seeds),
            choose_by(options, seeds),
            lambda tokens: tokens[-1] == end_of_text,
            advance,
            scored=False,
        )
    return [text.tokens for text in texts]


def write_samples(sampler: Sampler, samples: int, path: str, options: RunOptions) -> Summary:
    """Write `samples` samples per prompt, one JSON object per line, in the order of the prompts.

    The same call resumes an interrupted run, from the last complete part. Raises InputError if the
    file exists, and ChangedRunError if its parts are of another model, other prompts or options, both unless
    `options.overwrite`.
    """
    storage.check_replaceable(path, options.overwrite)
    sampling = dataclasses.asdict(sampler.options)
    config = SamplesConfig(**sampling | {"samples": samples, "device": sampler.device.type})
    prompts = hashlib.sha256(json.dumps(sampler.prompts).encode()).hexdigest()
    inputs = {"model": sampler.trained.fingerprint(), "prompts": prompts}
    folder = f"{path}.unfinished"

    batches = sampler.batches(samples)
    # Batches whose samples are written together.
    size = max(1, _PART_TOKENS // (max(batch.samples for batch in batches) * config.max_tokens))
    parts = [(index, batches[start : start + size]) for index, start in enumerate(range(0, len(batches), size))]
    with stage_run(_STAGE, config, inputs=inputs, output=folder, options=options) as run:

        def write_part(part: tuple[int, Sequence[Batch]]) -> TaskResult:
            drawn = [sample for batch in part[1] for sample in sampler.draw(batch)]
            text = "".join(to_json(sample) + "\n" for sample in drawn)
            file = shards.write_file(run.output, f"samples-{part[0]:05d}.jsonl", text.encode())
            counts = {
                "tokens": sum(sample.tokens for sample in drawn),
                "ended_samples": sum(sample.ended for sample in drawn),
            }
            return TaskResult(len(drawn), len(drawn), counts=counts, files=(file,))

        if not run.finished:
            run.map(
                write_part,
                parts,
                name=lambda part: f"samples-{part[0]:05d}",
                phase="parts",
                unit="tokens",
                cost=lambda part: sum(batch.samples for batch in part[1]) * config.max_tokens,
                serial=True,
            )
        summary = run.finish()
        with storage.atomic_write(path) as stream:
            for file in read_manifest(folder).files:
                stream.write(storage.read_bytes(storage.join(folder, file.name)))
    storage.remove(folder)
    return dataclasses.replace(summary, output=path)


def _encode(tokenizer: Any, prompt: str, trained: TrainedModel) -> list[int]:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"prompt {prompt[:30]!r}...: not valid UTF-8") from error
    ids: list[int] = tokenizer.encode(prompt, add_special_tokens=False).ids
    context = trained.model.architecture.context
    if len(ids) > context:
        raise UsageError(f"prompt {prompt[:30]!r}...: {len(ids)} tokens exceed the context of {context}; shorten it")
    return ids
