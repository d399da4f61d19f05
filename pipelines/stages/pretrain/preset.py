"""The recipe of a training whose options name no preset."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from pipelines import storage
from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import NEXT
from pipelines.model.training.recipe import Recipe, make_recipe
from pipelines.stages.pretrain.config import PretrainConfig


def choose_recipe(config: PretrainConfig, output: str, note: Callable[[str], None]) -> Recipe:
    """Return the recipe of the options; a preset that they lack is that of the training in `output`, or the device's.

    Loads torch only to look for a GPU.
    """
    preset = config.preset
    if preset is None:
        preset, reason = _begun_preset(output) or _default_preset(config.device)
        note(f"preset {preset}: {reason}; --preset selects another one")
    return make_recipe(preset, config.set, config.seed)


def _begun_preset(output: str) -> tuple[str, str] | None:
    for folder in (storage.join(output, NEXT), output):
        recorded = OutputFolder(folder).recorded_identity()
        if recorded and "preset" in recorded.config:
            return recorded.config["preset"], f"that of the training in {output}"
    return None


def _default_preset(device: str) -> tuple[str, str]:
    if find_spec("torch"):
        from pipelines.model.device import select_device

        if select_device(device).type == "cuda":
            return "gpt2", "the default on a CUDA GPU"
    return "tiny", "the default without a CUDA GPU, as gpt2 would take years"
