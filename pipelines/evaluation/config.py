"""The options of `webtext evaluate`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """How tasks are run."""

    limit: int | None = option(
        None,
        "Maximum number of examples per task (for perplexity: lines or records per file), for a trial run.",
        minimum=1,
        example=100,
    )
    precision: str = option(
        "auto",
        "Precision of matrix products: bf16 on GPUs that support it (auto).",
        choices=("auto", "bf16", "float32"),
    )
    device: str = option(
        "auto",
        "Device to run on; auto selects a GPU if there is one.",
        identity=False,
        choices=("auto", "cpu", "cuda", "mps"),
    )


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Which tasks are run or shown, and what is done with their results."""

    task: tuple[str, ...] = option(
        (),
        "Task and its file, or a TOML file of your own; without a path, the task's data set on the Hugging Face Hub.",
    )
    examples: tuple[str, ...] = option(
        (), "File of few-shot examples, such as the train set; used by --shots and to fit thresholds."
    )
    shots: int = option(0, "Few-shot examples before each question.", minimum=0)
    shot_seeds: int = option(1, "Random draws of few-shot examples.", minimum=1, only_with="shots")
    variant: str = option("paper", "Variant of the protocol; all runs every variant.")
    rescore: bool = option(False, "Recompute the metrics from the stored answers, without running the model.")
    checkpoints: bool = option(False, "Evaluate every checkpoint of a training run, in folders step-N.")
    compare: tuple[str, ...] = option(
        (), "Output folder of another model to compare with: paired differences on the same examples."
    )
    list_tasks: bool = option(False, "List the known tasks and exit.")
    show_task: str = option("", "Show a task's protocol, every choice with its reason, and exit.")
