"""The options of `webtext extract`."""

from __future__ import annotations

import dataclasses

from pipelines.core.config import option


@dataclasses.dataclass(frozen=True)
class ExtractConfig:
    """How the text is found, and which pages are given up."""

    extractor: str = option("trafilatura", "What finds the main text.", choices=("trafilatura", "newspaper"))
    language: str | None = option(
        None, "Keep only pages whose HTML declares this language (such as en), or declares none.", example="en"
    )
    min_words: int = option(0, "Drop documents of fewer words.", minimum=0)
    timeout_s: float = option(30.0, "Give a page up after this many seconds.", minimum=0.1, flag="--timeout")
    memory_mb: int = option(2048, "Give a page up that needs more memory than this (MiB).", minimum=512)
