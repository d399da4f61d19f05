"""The names of the files that the report writes, and of its work files."""

from __future__ import annotations

from pipelines import storage
from pipelines.engine.journal import WORK

REPORT, PAGE, HITS, CLEAN = "report.json", "report.html", "hits.parquet", "clean"

EXAMPLE_COUNTS = storage.join(WORK, "examples.json")
IGNORED = storage.join(WORK, "ignored.npy")
HELD_OUT_SAMPLE = storage.join(WORK, "held-out.parquet")


def places_name(benchmark: int) -> str:
    """Return the name of the file with the places of a benchmark's examples."""
    return storage.join(WORK, f"places-{benchmark:05d}.parquet")


def index_name(variant: int, field: str) -> str:
    """Return the name of the file with an array of an index."""
    return storage.join(WORK, f"index-{variant:02d}-{field}.npy")


def found_name(shard: int, variant: int) -> str:
    """Return the name of the file with the n-grams of a variant that are in a shard."""
    return storage.join(WORK, f"found-{variant:02d}-{shard:05d}.parquet")


def own_train_name(number: int) -> str:
    """Return the name of the task that scans a train split; its file is in the work folder."""
    return f"own-train-{number:05d}"


def held_out_part_name(shard: int) -> str:
    """Return the name of the file with the held-out documents sampled from a shard."""
    return storage.join(WORK, f"held-out-part-{shard:05d}.parquet")
