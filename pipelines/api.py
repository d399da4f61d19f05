"""What `import webtext` offers: every stage function, its config, and how to run it; see `examples/whole_pipeline.py`.

A name is imported when it is first used, so that reading this module loads neither torch nor any other library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.build import build as build
    from pipelines.engine.executor import make_executor as make_executor
    from pipelines.engine.run import RunOptions as RunOptions
    from pipelines.engine.run import Summary as Summary
    from pipelines.errors import WebtextError as WebtextError
    from pipelines.model.inference.options import SamplingOptions as SamplingOptions
    from pipelines.model.inference.sampling import generate as generate
    from pipelines.stages.dedup.config import DedupConfig as DedupConfig
    from pipelines.stages.dedup.stage import dedup as dedup
    from pipelines.stages.extract.config import ExtractConfig as ExtractConfig
    from pipelines.stages.extract.stage import extract as extract
    from pipelines.stages.fetch.config import FetchConfig as FetchConfig
    from pipelines.stages.fetch.stage import fetch as fetch
    from pipelines.stages.filter.config import FilterConfig as FilterConfig
    from pipelines.stages.filter.stage import filter as filter
    from pipelines.stages.overlap_index.config import OverlapIndexConfig as OverlapIndexConfig
    from pipelines.stages.overlap_index.stage import overlap_index as overlap_index
    from pipelines.stages.overlap_report.config import OverlapReportConfig as OverlapReportConfig
    from pipelines.stages.overlap_report.stage import overlap_report as overlap_report
    from pipelines.stages.pretrain.config import PretrainConfig as PretrainConfig
    from pipelines.stages.pretrain.stage import pretrain as pretrain
    from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig as RemoveWikipediaConfig
    from pipelines.stages.remove_wikipedia.stage import remove_wikipedia as remove_wikipedia
    from pipelines.stages.scrape.config import ScrapeConfig as ScrapeConfig
    from pipelines.stages.scrape.stage import scrape as scrape
    from pipelines.stages.tokenize.config import TokenizeConfig as TokenizeConfig
    from pipelines.stages.tokenize.stage import tokenize as tokenize
    from pipelines.stages.train_bpe.config import TrainBpeConfig as TrainBpeConfig
    from pipelines.stages.train_bpe.stage import train_bpe as train_bpe

_STAGES = (
    "scrape", "fetch", "extract", "filter", "dedup", "remove_wikipedia", "train_bpe", "tokenize", "pretrain",
    "overlap_index", "overlap_report",
)  # fmt: skip
_MODULES = {
    "RunOptions": "pipelines.engine.run",
    "Summary": "pipelines.engine.run",
    "make_executor": "pipelines.engine.executor",
    "WebtextError": "pipelines.errors",
    "build": "pipelines.build",
    "generate": "pipelines.model.inference.sampling",
    "SamplingOptions": "pipelines.model.inference.options",
    **{stage: f"pipelines.stages.{stage}.stage" for stage in _STAGES},
    **{f"{stage.title().replace('_', '')}Config": f"pipelines.stages.{stage}.config" for stage in _STAGES},
}

if not TYPE_CHECKING:  # so that type checkers know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted(_MODULES)
