"""Runs the stages of a small corpus."""

from __future__ import annotations

from pathlib import Path

from pipelines.engine.config import make_config
from pipelines.engine.run import RunOptions
from pipelines.pipeline import BY_NAME

_CONFIGS = {"scrape": {"shards": 3}, "fetch": {"per_host_delay": 0.0, "concurrency": 4}}
STAGES = ("scrape", "fetch", "extract", "dedup", "remove-wikipedia")


def build_stage(corpus: Path, name: str, **config: object) -> None:
    """Run a stage of the corpus in place of its earlier result."""
    stage = BY_NAME[name]
    # Without `filter`, dedup reads extract.
    read = {
        parameter: f"{corpus}/{'extract' if source == 'filter' else source}"
        for parameter, source in stage.reads.items()
    }
    if stage.files == "dumps":
        read = {"dumps": sorted(str(path) for path in (corpus / "dumps").iterdir())}
    made = make_config(stage.config_type(), {**_CONFIGS.get(name, {}), **config}, {}, str)
    stage.load()(made, **read, output=str(corpus / name), options=RunOptions(overwrite=True))
