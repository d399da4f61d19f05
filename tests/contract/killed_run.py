"""Runs one stage in a process that kills itself right before or after it renames a file for the n-th time.

python killed_run.py CORPUS STAGE OUTPUT N before|after
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from contract_cases import run_stage

from pipelines.core import storage
from pipelines.core.run import RunOptions


def main() -> None:
    """Run the stage of the arguments and die on the way."""
    corpus, stage, output, count, moment = sys.argv[1:]
    rename = storage._rename
    renames = 0

    def counted(file_system: Any, temporary: str, final: str) -> None:
        nonlocal renames
        renames += 1
        if renames == int(count) and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(file_system, temporary, final)
        if renames == int(count) and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    storage._rename = counted
    run_stage(Path(corpus), stage, Path(output), RunOptions())


if __name__ == "__main__":
    main()
