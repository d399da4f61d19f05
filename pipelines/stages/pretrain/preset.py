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
    """Return the recipe of the options, by default with the preset of the training in `output`, or one for the device.

    Loads torch only to look for a GPU.
    """
    preset = config.preset
    if preset is None:
        recorded = [OutputFolder(folder).recorded_identity() for folder in (storage.join(output, NEXT), output)]
        if begun := [identity for identity in recorded if identity]:
            preset, reason = str(begun[0].config["preset"]), f"that of the training in {output}"
        else:
            preset, reason = "tiny", "no CUDA GPU found; gpt2 would take years"
            if find_spec("torch"):
                from pipelines.model.device import select_device

                if select_device(config.device).type == "cuda":
                    preset, reason = "gpt2", "the default on a CUDA GPU"
        note(f"using preset {preset} ({reason}); choose another with --preset")
    return make_recipe(preset, config.set, config.seed)
