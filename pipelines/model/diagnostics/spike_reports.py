"""What is saved of a spike: the documents of its batch, the norms by layer, and the command that comes to it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.core import shards, storage
from pipelines.model.diagnostics.batch_documents import describe_blocks
from pipelines.model.diagnostics.spikes import Spike, spike_report
from pipelines.model.training.data import TokenFolder
from pipelines.model.training.recipe import Recipe

FOLDER = "spikes"


@dataclasses.dataclass(frozen=True)
class Incident:
    """A spike with the norms of the model's parts at that step."""

    spike: Spike
    norms: Sequence[Mapping[str, Any]]


def incident_report(
    incident: Incident, tokens: TokenFolder, recipe: Recipe, batch: Sequence[int], replay: str
) -> bytes:
    """Return the file of a spike; `batch` are the blocks of its step, `replay` the command for it."""
    described = describe_blocks(tokens, batch, recipe.context)
    return spike_report(
        incident.spike,
        norms=incident.norms,
        blocks=[block.to_json() for block in described],
        recipe=dataclasses.asdict(recipe),
        replay=replay,
    )


def incident_file(step: int) -> str:
    """Return the name of a spike's file within the folder of the training."""
    return f"{FOLDER}/step-{step:07d}.json"


def write_incident(output: str, step: int, report: bytes) -> str:
    """Write the file of a spike; return its path."""
    shards.write_file(output, incident_file(step), report)
    return storage.join(output, incident_file(step))
