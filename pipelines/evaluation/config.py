"""The options of `webtext evaluate`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """How tasks are run."""

    limit: int | None = option(
        None,
        "Maximum examples per task, or lines or records per file for a perplexity, for a trial run.",
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
        "Device that runs the model; auto: a GPU if there is one.",
        identity=False,
        choices=("auto", "cpu", "cuda", "mps"),
    )


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Which tasks are run or shown, and what is done with their results."""

    task: tuple[str, ...] = option(
        (),
        "Task and its file, NAME[/SPLIT][=PATH], or a TOML file of your own task; without a file, the task's data set "
        "on the Hugging Face Hub.",
    )
    examples: tuple[str, ...] = option(
        (), "Solved examples of a task, NAME[=PATH], such as its train set, for --shots and thresholds."
    )
    shots: int = option(0, "Solved examples before every question.", minimum=0)
    shot_seeds: int = option(1, "Number of random draws of the shots.", minimum=1, only_with="shots")
    variant: str = option("paper", "Variant of the protocol; all runs every one.")
    rescore: bool = option(False, "Compute the metrics again from the stored answers, without the model.")
    checkpoints: bool = option(False, "Evaluate all checkpoints of a training, each in a folder step-N of the output.")
    compare: tuple[str, ...] = option(
        (), "Output folder of another model, for paired differences on the same examples."
    )
    list_tasks: bool = option(False, "List the known tasks and exit.")
    show_task: str = option("", "Show every choice of a task's protocol, with its reason, and exit.")
