"""Scrapes dumps in a process that kills itself right before or after it renames a file for the n-th time.

python killed_scrape_dumps.py OUTPUT N before|after OPTIONS_JSON DUMP...

`task_rows` among the options is how many scores are fetched by one task.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from scrape_run import run_scrape

from pipelines.stages.scrape import arctic_shift, scores
from pipelines.storage import files


def main() -> None:
    """Run the scrape of the arguments and die on the way."""
    output, count, moment, options, *dumps = sys.argv[1:]
    arctic_shift.REQUEST_DELAY_S = 0.0
    config = json.loads(options)
    scores.ROWS_PER_TASK = config.pop("task_rows", scores.ROWS_PER_TASK)
    rename = files._rename
    renames = 0

    def counted(file_system: Any, temporary: str, final: str) -> None:
        nonlocal renames
        renames += 1
        if renames == int(count) and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(file_system, temporary, final)
        if renames == int(count) and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    files._rename = counted
    run_scrape([Path(dump) for dump in dumps], Path(output), **config)


if __name__ == "__main__":
    main()
