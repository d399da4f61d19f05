"""The options of `webtext evaluate`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """How tasks are run."""

    limit: int | None = option(
        None,
        "Only the first so many examples of a task, or lines or records of each file for a perplexity, for a trial.",
        minimum=1,
        example=100,
    )
    precision: str = option(
        "auto",
        "Precision of matrix products: bf16 on GPUs that support it (auto).",
        choices=("auto", "bf16", "float32"),
    )
