"""Trains the small model in a process that kills itself within a write or a removal.

python killed_training.py TOKENS OUTPUT write NAME       half of the first file of this name is written
python killed_training.py TOKENS OUTPUT remove NAME      the first file of this name is gone, the rest of its folder not
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from conftest import train_small

from pipelines.core import storage


def main() -> None:
    """Train and die on the way."""
    tokens, output, kind, name = sys.argv[1:]
    write, remove = storage.HashingWriter.write, storage.remove

    def half_written(self: Any, data: Any) -> int:
        if kind == "write" and self._path.endswith(name):
            write(self, memoryview(data)[: len(data) // 2])
            self._raw.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, data)

    def half_removed(path: str) -> None:
        remove(path)
        if kind == "remove" and path.endswith(name):
            os.kill(os.getpid(), signal.SIGKILL)

    storage.HashingWriter.write = half_written  # type: ignore[method-assign]
    storage.remove = half_removed
    train_small(tokens, Path(output), keep_checkpoints=1)


if __name__ == "__main__":
    main()
