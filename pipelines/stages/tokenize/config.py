"""The options of `webtext tokenize`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class TokenizeConfig:
    """What the token shards are to be."""

    held_out: float = option(
        0.05, "The share of documents held out, chosen by a hash of their id.", minimum=0.0, maximum=0.5
    )
    format: str = option(
        "nanogpt", "nanogpt: tokens alone; llmc: behind llm.c's header of 1,024 bytes.", choices=("nanogpt", "llmc")
    )
    text_field: str = option("text", "The column or field that holds the text.")
