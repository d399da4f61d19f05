"""The metrics of a training run for TensorBoard, in addition to `metrics.jsonl`."""

from __future__ import annotations

from typing import Any

from pipelines import storage
from pipelines.errors import WebtextError
from pipelines.extras import require_extra

# How TensorBoard groups the columns of `metrics.jsonl` and `timing.jsonl`.
_TAGS = {
    "loss": "loss/train",
    "held_out_loss": "loss/held_out",
    "held_out_bits_per_byte": "loss/held_out_bits_per_byte",
    "learning_rate": "training/learning_rate",
    "gradient_norm": "training/gradient_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "utilisation": "speed/utilisation",
}


def require_tensorboard() -> None:
    """Raise WebtextError, with the command that installs it, if TensorBoard is not installed."""
    require_extra("tensorboard", "--tensorboard", "tensorboard")


class TensorBoardLog:
    """Writes metrics as TensorBoard events to a local folder.

    `step` is that of the checkpoint from which training resumes, 0 for none. Events of that step and later ones from an
    earlier process are hidden, so log the row of `step` again after a resume.
    """

    def __init__(self, folder: str, step: int) -> None:
        require_tensorboard()
        if not storage.is_local(folder):
            raise WebtextError(f"{folder}: TensorBoard events need a local folder; train without --tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(storage.local_path(folder), purge_step=step)
        self._step = step
        self._written: set[str] = set()

    def log(self, row: dict[str, Any]) -> None:
        """Write the values of a row that were not yet written for its step; a row may be logged again with more."""
        if row["step"] != self._step:
            self._step, self._written = row["step"], set()
        for name, tag in _TAGS.items():
            if row.get(name) is not None and tag not in self._written:
                self._writer.add_scalar(tag, row[name], self._step)
                self._written.add(tag)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
