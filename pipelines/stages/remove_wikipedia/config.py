"""The options of `webtext remove-wikipedia`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.document_options import DocumentConfig


@dataclasses.dataclass(frozen=True)
class RemoveWikipediaConfig(DocumentConfig):
    """What counts as Wikipedia: domains, and texts."""

    # A reference is optional.
    needs_files = False

    extra_domain: tuple[str, ...] = option(
        (), "Registered domain to remove, in addition to those in data/wikipedia-domains.txt."
    )
    sister_projects: bool = option(False, "Also remove Wikipedia's sister projects, such as Wiktionary and Wikibooks.")
    reference_share: float = option(
        0.5,
        "Minimum share of a document's words in passages of --reference for it to be dropped.",
        minimum=0.01,
        maximum=1,
    )
    mirror_text: bool = option(True, "Drop documents whose text has the notices and links of a Wikipedia mirror.")
