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
        "Rules to apply in order: webtext, gopher-quality (English), gopher-repetition, c4, fineweb, none, or a file.",
    )
    rule: tuple[str, ...] = option((), "Additional rule by name: of any profile, or a function in the --rules file.")
    set: tuple[str, ...] = option((), "Override the threshold of a rule; NAME=off disables the rule.")
    license: tuple[str, ...] = option((), "Keep only documents under this license: cc-by-4.0, cc-by, redistributable.")
    language: tuple[str, ...] = option(
        (), "Identify languages, and keep only documents in this one (ISO 639-1, such as en), or all."
    )
    language_score: float = option(
        0.0, "Minimum language-detection confidence.", minimum=0, maximum=1, only_with="language"
    )
    redact: tuple[str, ...] = option(
        (), "Replace these in texts, titles and authors with placeholders.", choices=("email", "ip", "phone")
    )
    quality_alpha: float = option(
        9.0,
        "Alpha of the Pareto distribution for --quality-model; larger values keep fewer low-scoring documents.",
        minimum=0.1,
        maximum=1000,
    )
    seed: int = option(0, "Random seed for --quality-model and --train-quality.")

    def __post_init__(self) -> None:
        """Sort `redact`, whose order does not change the result."""
        object.__setattr__(self, "redact", tuple(sorted(set(self.redact))))
