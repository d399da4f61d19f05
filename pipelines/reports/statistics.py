"""The counts of a corpus as one page of HTML: documents, words and bytes by domain, language, year and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.charts import bar_chart
from pipelines.reports.render import render


def render_statistics(total: Any, groups: Mapping[str, Sequence[tuple[str, Any]]], sizes: Mapping[str, int]) -> str:
    """Return the page of the counts of a corpus; the same counts give the same bytes.

    `total` and the second of each pair have `documents`, `words` and `bytes`; `groups` has for each kind the names of
    its largest groups and their counts, `sizes` how many groups there are.
    """
    charts = {
        kind: bar_chart(
            f"Documents by {kind}", "The largest groups.", [(name, counts["documents"]) for name, counts in rows]
        )
        for kind, rows in groups.items()
    }
    return render("statistics.html", total=total, groups=groups, sizes=sizes, charts=charts)
