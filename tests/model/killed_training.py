"""Trains the small model in processes that kill themselves during a write or a removal.

python killed_training.py TOKENS OUTPUT:write:NAME ...      half of the first file of this name is written
python killed_training.py TOKENS OUTPUT:remove:NAME ...     the first file of this name is removed, the rest is not

The processes are forked after the imports, which take most of the time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - as the training: before the forks, each of which would import it
from small_training import train_small

import pipelines.stages.pretrain.training  # noqa: F401
from pipelines import storage


def train_and_die(tokens: str, output: str, kind: str, name: str) -> None:
    """Train until the file is written or removed."""
    write, remove = storage.HashingWriter.write, storage.remove

    def write_half(self: Any, data: Any) -> int:
        if kind == "write" and self._path.endswith(name):
            write(self, memoryview(data)[: len(data) // 2])
            self._raw.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, data)

    def remove_one(path: str) -> None:
        remove(path)
        if kind == "remove" and path.endswith(name):
            os.kill(os.getpid(), signal.SIGKILL)

    storage.HashingWriter.write = write_half  # type: ignore[method-assign]
    storage.remove = remove_one
    train_small(tokens, Path(output), keep_checkpoints=1)


def main() -> None:
    """Fork a process per argument; fail unless each was killed."""
    tokens, *points = sys.argv[1:]
    children = []
    for point in points:
        if (child := os.fork()) == 0:
            train_and_die(tokens, *point.split(":"))
            os._exit(0)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status


if __name__ == "__main__":
    main()
