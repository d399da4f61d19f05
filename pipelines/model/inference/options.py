"""How texts are drawn; apart from what draws them, so that `webtext generate --help` need not load torch."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """How the next token is drawn, and how many are."""

    max_tokens: int = option(200, "Where a text is cut off.", minimum=1)
    temperature: float = option(1.0, "Divides the logits; 0 takes the likeliest token.", minimum=0.0)
    top_k: int = option(40, "Draw from the k likeliest tokens; 0: all.", minimum=0)
    top_p: float = option(1.0, "Draw from the likeliest tokens whose sum reaches p; 1: all.", minimum=1e-6, maximum=1.0)
    seed: int = option(0, "Another seed, another text.", minimum=0)


@dataclasses.dataclass(frozen=True)
class SamplesConfig(SamplingOptions):
    """What decides a file of samples beside the model and the prompts; another device rounds otherwise."""

    samples: int = option(1, "Texts for each prompt.", minimum=1)
    device: str = option("cpu", "Where they are computed.")
