"""The pipeline: every stage in order, and what it reads from the corpus folder.

`webtext build`, `webtext status`, `webtext init` and the contract tests share this table. A stage's module is only
imported when it is used.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.engine.run import Summary

# The key of a stage's TOML table that lists its own input.
INPUT = "input"


@dataclasses.dataclass(frozen=True)
class StageSpec:
    """One stage: its name and inputs.

    The name determines the package and the function (`train_bpe`) and the config class (`TrainBpeConfig`). `reads` maps
    a parameter of the function to the stage whose folder it takes.

    `files` is a parameter that takes a list of paths, and the key of the stage's TOML table that lists them. If
    `file_table` is set, that key holds a table `NAME = "PATH"` instead, passed as `NAME=PATH`. `paths` are parameters
    that take one path each, and keys of the TOML table; such a key may replace an input of `reads`.

    A stage with a `main_input` reads files from elsewhere if its TOML table lists them under `input`.

    An `is_optional` stage is part of a corpus that lists it, as new ones do, or that has its result.
    """

    name: str
    reads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: str | None = None
    file_table: str | None = None
    paths: tuple[str, ...] = ()
    is_optional: bool = False

    @property
    def path_keys(self) -> tuple[str, ...]:
        """The keys of the stage's TOML table that name files instead of options."""
        return tuple(filter(None, (self.file_table or self.files, *self.paths, self.main_input and INPUT)))

    @property
    def main_input(self) -> str | None:
        """The parameter that takes files from elsewhere, too."""
        return next((parameter for parameter in self.reads if parameter in ("links", "pages", "documents")), None)

    @property
    def function(self) -> str:
        """The name of the stage's function, which is also the name of its package."""
        return self.name.replace("-", "_")

    def load(self) -> Callable[..., Summary]:
        """Import and return the stage's function."""
        module = importlib.import_module(f"pipelines.stages.{self.function}.stage")
        function: Callable[..., Summary] = getattr(module, self.function)
        return function

    def config_type(self) -> type[Any]:
        """Import and return the stage's config dataclass."""
        module = importlib.import_module(f"pipelines.stages.{self.function}.config")
        config_type: type[Any] = getattr(module, self.name.title().replace("-", "") + "Config")
        return config_type


PIPELINE = (
    StageSpec("scrape", files="dumps"),
    StageSpec("fetch", {"links": "scrape"}),
    StageSpec("extract", {"pages": "fetch", "links": "scrape"}),
    StageSpec("filter", {"documents": "extract"}, paths=("rules", "quality_model"), is_optional=True),
    StageSpec("dedup", {"documents": "filter"}),
    StageSpec("remove-wikipedia", {"documents": "dedup"}, files="reference", paths=("reference_index",)),
    StageSpec("train-bpe", {"documents": "remove-wikipedia"}, files="counts", paths=("compare",)),
    StageSpec("tokenize", {"documents": "remove-wikipedia", "tokenizer": "train-bpe"}, paths=("tokenizer",)),
    StageSpec("pretrain", {"tokens": "tokenize"}, files="tokens", file_table="mix", paths=("init_from",)),
    StageSpec("overlap-index", {"documents": "remove-wikipedia"}),
    StageSpec(
        "overlap-report",
        {"documents": "remove-wikipedia"},
        files="benchmarks",
        file_table="benchmark",
        paths=("index", "generated"),
    ),
    StageSpec("search", {"documents": "remove-wikipedia"}),
)

# The stages that write documents, in order.
DOCUMENT_STAGES = ("extract", "filter", "dedup", "remove-wikipedia", "rehydrate")

BY_NAME = {stage.name: stage for stage in PIPELINE}

# The folders of stages that a corpus may have: the last one of `webtext rehydrate`, which is outside the pipeline.
STAGE_FOLDERS = (*BY_NAME, DOCUMENT_STAGES[-1])
