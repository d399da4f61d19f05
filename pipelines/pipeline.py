"""The line: every stage, in order, and what it reads from the corpus folder.

The one table that `webtext build`, `webtext status`, `webtext init` and the contract tests share. A stage's module is
only loaded when it is asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.core.run import Summary


@dataclasses.dataclass(frozen=True)
class StageSpec:
    """One stage: where it lives, its inputs (parameter -> the stage that writes it), and what else it reads.

    `files` names a list of paths that is both a parameter of the function and a key of the stage's TOML table; so does
    each of `paths` a single one, which may take the place of an input.
    """

    name: str
    package: str
    function: str
    config: str
    reads: Mapping[str, str]
    files: str | None = None
    paths: tuple[str, ...] = ()

    def load(self) -> Callable[..., Summary]:
        """Import and return the stage's function."""
        loaded: Callable[..., Summary] = getattr(importlib.import_module(f"{self.package}.stage"), self.function)
        return loaded

    def config_type(self) -> type[Any]:
        """Import and return the stage's config dataclass."""
        loaded: type[Any] = getattr(importlib.import_module(f"{self.package}.config"), self.config)
        return loaded


_STAGES = "pipelines.stages"

PIPELINE = (
    StageSpec("scrape", f"{_STAGES}.scrape", "scrape", "ScrapeConfig", {}, files="dumps"),
    StageSpec("fetch", f"{_STAGES}.fetch", "fetch", "FetchConfig", {"links": "scrape"}),
    StageSpec("extract", f"{_STAGES}.extract", "extract", "ExtractConfig", {"pages": "fetch", "links": "scrape"}),
    StageSpec("dedup", f"{_STAGES}.dedup", "dedup", "DedupConfig", {"documents": "extract"}),
    StageSpec(
        "remove-wikipedia",
        f"{_STAGES}.remove_wikipedia",
        "remove_wikipedia",
        "RemoveWikipediaConfig",
        {"documents": "dedup"},
    ),
    StageSpec(
        "train-bpe",
        f"{_STAGES}.train_bpe",
        "train_bpe",
        "TrainBpeConfig",
        {"documents": "remove-wikipedia"},
        files="counts",
        paths=("compare",),
    ),
    StageSpec(
        "tokenize",
        f"{_STAGES}.tokenize",
        "tokenize",
        "TokenizeConfig",
        {"documents": "remove-wikipedia", "tokenizer": "train-bpe"},
        paths=("tokenizer",),
    ),
    StageSpec(
        "pretrain", f"{_STAGES}.pretrain", "pretrain", "PretrainConfig", {"tokens": "tokenize"}, paths=("init_from",)
    ),
    StageSpec(
        "overlap-index",
        f"{_STAGES}.overlap_index",
        "overlap_index",
        "OverlapIndexConfig",
        {"documents": "remove-wikipedia"},
    ),
    StageSpec(
        "overlap-report",
        f"{_STAGES}.overlap_report",
        "overlap_report",
        "OverlapReportConfig",
        {"documents": "remove-wikipedia"},
        files="benchmarks",
        paths=("index", "samples"),
    ),
)

BY_NAME = {stage.name: stage for stage in PIPELINE}
