"""Sampling options, without torch, so that `webtext generate --help` does not load it."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


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
    device: str = option("cpu", "Device that computes them.")
