"""The options of `webtext rehydrate`, apart from those of `webtext fetch`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option

VERDICTS = EXACT, NEAR, CHANGED, GONE = "exact", "near", "changed", "gone"


@dataclasses.dataclass(frozen=True)
class ReleaseLinksConfig:
    """How the links of a release are divided."""

    shards: int = option(
        64,
        "Number of shards; all links of a domain are in the same shard.",
        minimum=1,
        maximum=10000,
        group="Rehydration",
    )


@dataclasses.dataclass(frozen=True)
class RehydrateConfig(ReleaseLinksConfig):
    """When a text counts as that of the release."""

    near: float = option(
        0.8, "Minimum estimated Jaccard similarity of a near text; lower values are changed.", minimum=0, maximum=1
    )
    verdict: tuple[str, ...] = option(
        (EXACT, NEAR), "Verdict of the documents to keep.", choices=(EXACT, NEAR, CHANGED)
    )
    any_version: bool = option(
        False,
        "Rehydrate a release of another version of extract or filter, although equal pages can give other texts.",
        identity=False,
    )
