"""The options of `webtext release`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option


@dataclasses.dataclass(frozen=True)
class ReleaseConfig:
    """What a release contains, and how it is described."""

    license: str = option("", "License of the collection, an SPDX id or a URL; required. Pages keep their own.")
    texts: bool = option(
        False, "Publish the texts, which belong to the authors of the pages, and not only URLs and hashes."
    )
    redact: bool = option(True, "Replace e-mail addresses, IP addresses and phone numbers in texts and titles.")
    name: str = option("", "Name of the release. [default: that of the version before, or of the corpus folder]")
    creator: str = option("", "Who publishes the release. [default: the developers of NAME]")
    url: str = option("", "Address of the page of the release, for croissant.json. [default: README.md]")
    notes: str = option("", "Markdown file with what you add to the data card and the summary of the content.")
    # They describe the act of releasing: a run that differs in nothing else is not a new release.
    why: str = option("", "Why there is a new version. [default: the numbers of changed documents]", identity=False)
    date: str = option("", "Day of the release. [default: the latest one in what is released]", identity=False)
