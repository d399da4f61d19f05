"""The options of `webtext release`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class ReleaseConfig:
    """What a release contains, and how it is described."""

    license: str | None = option(
        None,
        "License of the collection, an SPDX id or a URL; required. Pages stay under the licenses of their authors.",
        example="ODC-By-1.0",
    )
    texts: bool = option(
        False,
        "Also publish the texts. By default only URLs and hashes are, by which others can rebuild the corpus: the texts "
        "belong to the authors of the pages.",
    )
    redact: bool = option(
        True, "Replace e-mail addresses, IP addresses and phone numbers in texts and titles by placeholders."
    )
    name: str | None = option(None, "Name of the release. [default: the name of the corpus folder]", example="my-corpus")
    creator: str | None = option(
        None, "Who publishes the release. [default: the developers of NAME]", example="Example University"
    )
    url: str = option("README.md", "Address of the page of the release, for croissant.json.", example="")
    # They describe the act of releasing: a run that differs in nothing else is not a new release.
    why: str | None = option(
        None, "Why there is a new version, in a sentence. [default: the numbers of documents]", identity=False
    )
    date: str | None = option(
        None,
        "Date of the release, YYYY-MM-DD. [default: the day of the newest page, request of removal or release]",
        identity=False,
    )
