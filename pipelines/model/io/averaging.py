"""Averages the weights of the last checkpoints of a training, whose scores vary less than those of the last weights."""

from __future__ import annotations

from typing import Any

from pipelines import storage
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.model.io.model_folder import CONFIG_FILE, TOKENIZER_FILE
from pipelines.model.io.tensor_files import read_tensors, write_tensors
from pipelines.model.training.checkpoint import MODEL_FILE, find_checkpoints


def average_checkpoints(training: str, count: int, output: str) -> None:
    """Write a model whose weights are the mean of those of the last `count` checkpoints of a training.

    Raises InputError if the training has fewer checkpoints, or a damaged one.
    """
    checkpoints = find_checkpoints(training)[-count:]
    if len(checkpoints) < count:
        raise InputError(
            f"{training}: has {plural(len(checkpoints), 'checkpoint')}, an average of {count} was requested; "
            "use another --output"
        )
    sums: dict[str, Any] = {}
    for checkpoint in checkpoints:
        if problem := checkpoint.problem():
            raise InputError(f"{problem}; use another --output")
        for name, tensor in read_tensors(checkpoint.model_path).items():
            sums[name] = sums.get(name, 0) + tensor.double()
    for name in (CONFIG_FILE, TOKENIZER_FILE):
        storage.link(storage.join(training, name), storage.join(output, name))
    write_tensors(output, MODEL_FILE, {name: (total / count).float() for name, total in sums.items()})
