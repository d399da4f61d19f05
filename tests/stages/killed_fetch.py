"""Fetches a list of URLs in a process of its own, with small segments, so that tests can kill it.

python killed_fetch.py FOLDER FLUSH_OUTCOMES
"""

from __future__ import annotations

import sys
from pathlib import Path

from fetch_run import run_fetch

from pipelines.stages.fetch import segments

if __name__ == "__main__":
    segments.FLUSH_OUTCOMES = int(sys.argv[2])
    run_fetch(Path(sys.argv[1]), per_host_delay=0.01)
