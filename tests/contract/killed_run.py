"""Runs one stage several times, each time in a process that kills itself right before or after its n-th rename.

python killed_run.py CORPUS STAGE OUTPUT N:before|after ...    prints how many of the runs were killed

The runs are forks of one process that has imported the stage, which saves most of their time; nothing has started a
thread by then.
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
from pipelines.pipeline import BY_NAME


def main() -> None:
    """Run the stage of the arguments once per moment."""
    corpus, stage, output, *moments = sys.argv[1:]
    BY_NAME[stage].load()
    killed = 0
    for moment in moments:
        process = os.fork()
        if not process:
            count, when = moment.split(":")
            _kill_at(int(count), when)
            run_stage(Path(corpus), stage, Path(output), RunOptions())
            os._exit(0)
        _, status = os.waitpid(process, 0)
        if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
            raise SystemExit(f"{moment}: exit code {os.waitstatus_to_exitcode(status)}")
        killed += os.WIFSIGNALED(status)
    print(killed)


def _kill_at(count: int, when: str) -> None:
    """Make this process kill itself before or after the `count`-th file gets its name."""
    rename = storage._rename
    renames = 0

    def counted(file_system: Any, temporary: str, final: str) -> None:
        nonlocal renames
        renames += 1
        if renames == count and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(file_system, temporary, final)
        if renames == count and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    storage._rename = counted


if __name__ == "__main__":
    main()
