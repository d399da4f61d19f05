"""The options of `webtext filter`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class FilterConfig(DocumentConfig):
    """Which documents are kept."""

    profile: tuple[str, ...] = option(
        ("webtext",),
        "Rules to apply, in this order: webtext, gopher-quality, gopher-repetition, c4, fineweb, none, or a TOML file.",
    )
    rule: tuple[str, ...] = option((), "Further rule, by name: of any profile, or a function in the file of --rules.")
    set: tuple[str, ...] = option((), "Another threshold for a rule, as RULE=VALUE; RULE=off disables the rule.")
    language: tuple[str, ...] = option((), "Keep only texts in this language (ISO 639-1, such as en).")
    language_score: float = option(
        0.0, "Minimum probability of the language.", minimum=0, maximum=1, only_with="language"
    )
    quality_alpha: float = option(
        9.0,
        "With a quality model, alpha of the Pareto distribution: a larger one keeps fewer documents of a low score.",
        minimum=0.1,
        maximum=1000,
    )
    seed: int = option(0, "Seed of the draws with a quality model.")
