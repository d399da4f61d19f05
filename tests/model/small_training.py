"""The training that the tests of the model share: seconds on one core."""

from __future__ import annotations

from pathlib import Path

from pipelines.engine.run import RunOptions, Summary
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.stage import pretrain

SMALL = (
    "layers=2", "width=16", "heads=2", "context=16", "batch_size=4", "micro_batch=3", "steps=6", "warmup_steps=2",
    "learning_rate=0.01", "dropout=0.1", "eval_every=3", "eval_blocks=2",
)  # fmt: skip


def train_small(
    tokens: str,
    output: Path,
    *more: str,
    options: RunOptions | None = None,
    init_from: str | None = None,
    **config: object,
) -> Summary:
    """Train the small model, with more `--set` values and options."""
    values = {"preset": "tiny", "set": (*SMALL, *more), "device": "cpu", "threads": 1, "checkpoint_every": 2, **config}
    return pretrain(
        PretrainConfig(**values),  # type: ignore[arg-type]
        tokens=tokens,
        output=str(output),
        options=options or RunOptions(),
        init_from=init_from,
    )
