"""Trains in a process of its own and prints the most memory that it took beyond what it had before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from small_training import train_small

from pipelines.engine.machine import peak_bytes, resident_bytes

if __name__ == "__main__":
    tokens, output, *sets = sys.argv[1:]
    torch.set_num_threads(1)
    before = resident_bytes() or 0
    train_small(tokens, Path(output), *sets, checkpoint_every=100)
    print(json.dumps({"taken_bytes": peak_bytes()["peak_bytes"] - before}))
