"""Extractors that hang, crash or grow, in a module that a child process imports quickly."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from pipelines.algorithms.kernels import compile_events
from pipelines.stages.extract.extractors import Extracted


def misbehaving(page: bytes, url: str | None) -> Extracted:
    """Misbehave as the page asks."""
    html = page.decode()
    if "HANG" in html:
        time.sleep(3600)
    if "SPIN" in html:
        re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter: no thread of the child runs meanwhile
    if "ABORT" in html:
        os.abort()
    if "EXIT" in html:
        os._exit(7)
    if "RAISE" in html:
        raise RecursionError(f"at {id(html)}")
    if "KILLED" in html:
        _, times, marker, _ = html.split("|")
        with open(marker, "a+") as file:
            file.write(".")
        if Path(marker).stat().st_size <= int(times):
            os.kill(os.getpid(), signal.SIGKILL)
    if "COMPILE" in html:
        compile_events.report()
    if "GROW" in html:
        bytearray(8 << 30)
    return Extracted(f"process {os.getpid()}", html)


def broken_at_start(html: str, url: str | None) -> Extracted:
    raise ImportError("no such parser")
