"""The metrics of a training run as TensorBoard shows them, beside `metrics.jsonl`, which is always written."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from pipelines.core import storage
from pipelines.core.errors import WebtextError
from pipelines.model.training.checkpoint import Row

# How the names of `metrics.jsonl` and `timing.jsonl` are grouped on the page.
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
    """Raise WebtextError, with the command that installs it, where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise WebtextError("tensorboard is not installed; install it with: pip install 'webtext-kit[tensorboard]'")


class TensorBoardLog:
    """Writes rows of metrics as TensorBoard's events into a local folder.

    `step` is that of the checkpoint which training goes on from, 0 for none. What an earlier process wrote of that step
    and of later ones is hidden, so that no point is there twice: give `log` the row of `step` again after a resume.
    """

    def __init__(self, folder: str, step: int) -> None:
        require_tensorboard()
        if not storage.is_local(folder):
            raise WebtextError(f"{folder}: TensorBoard's events are written to a local disk alone; train without them")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(storage.local_path(folder), purge_step=step)
        self._step = step
        self._written: set[str] = set()

    def log(self, row: Row) -> None:
        """Write what a row holds and was not yet written of its step; a row may come again with more in it."""
        if row["step"] != self._step:
            self._step, self._written = row["step"], set()
        for tag, value in _scalars(row).items():
            if tag not in self._written:
                self._writer.add_scalar(tag, value, self._step)
                self._written.add(tag)

    def close(self) -> None:
        """Write what is still held back."""
        self._writer.close()


def _scalars(row: Row) -> dict[str, Any]:
    return {tag: row[name] for name, tag in _TAGS.items() if row.get(name) is not None}
