"""The options of `webtext extract`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option

CONTENTS = ("main", "article", "auto")


@dataclasses.dataclass(frozen=True)
class ExtractConfig:
    """How text is extracted, and which pages are dropped."""

    extractor: str = option("fast", "Extractor of the main text.", choices=("fast", "trafilatura", "newspaper"))
    content: str = option(
        "auto",
        "What fast keeps: the main content, or the article body only; auto selects article for articles, else main.",
        choices=CONTENTS,
    )
    declared_language: str | None = option(
        None, "Keep only pages whose HTML declares this language (such as en) or none.", example="en"
    )
    min_words: int = option(0, "Minimum number of words per document.", minimum=0)
    fix_text: bool = option(False, "Repair wrongly decoded text (mojibake) with ftfy.")
    keep_non_documents: bool = option(
        False, "Keep error pages, bot checks, login walls and other pages that are not documents."
    )
    timeout: float = option(30.0, "Per-page timeout in seconds.", minimum=0.1)
    memory_limit_mib: int = option(2048, "Per-page memory limit in MiB.", minimum=512)
