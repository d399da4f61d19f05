"""A task that a small model learns in seconds: whether a sentence of the small corpus is about a cat or a dog."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pipelines.engine.run import RunOptions, Summary
from pipelines.evaluation.definitions import find_task
from pipelines.finetuning.config import FineTuneConfig
from pipelines.finetuning.stage import finetune

# The small model has not learned much, so that it needs more than a fine-tuning's learning rate.
QUICK = ("epochs=12", "batch_size=8", "micro_batch=8", "learning_rate=0.01", "warmup=0.1")
OWN_TASK = """
[finetune]
text = ["text"]
labels = ["cat", "dog"]
metrics = ["accuracy", "matthews"]
"""


def write_task(folder: Path, train: int = 32, validation: int = 16) -> Path:
    """Write `animals.toml`, `train.jsonl` and `dev.jsonl`."""
    source = random.Random(3)
    words = ["the", "old", "young", "sees", "likes", "and", "house", "garden"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("dev", validation)):
        rows = []
        for number in range(count):
            sentence = [source.choice(words) for _ in range(3)]
            sentence.insert(source.randrange(3), ("cat", "dog")[number % 2])
            rows.append({"text": " ".join(sentence), "label": number % 2})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "animals.toml").write_text(OWN_TASK)
    return folder


def finetune_small(
    model: Path, task: Path, output: Path, *more: str, options: RunOptions | None = None, **config: Any
) -> Summary:
    """Fine-tune a model on a folder of `write_task`."""
    values = {"set": (*QUICK, *more), "device": "cpu", "threads": 1, "checkpoint_every": 5, "log_every": 0, **config}
    return finetune(
        FineTuneConfig(**values),
        task=find_task(str(task / "animals.toml")),
        files=sorted(map(str, task.glob("*.jsonl"))),
        model=str(model),
        output=str(output),
        options=options or RunOptions(),
    )
