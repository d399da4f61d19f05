"""The overview: what is left of the submissions after each stage, how far running stages are, and all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse.site import Site, site_of
from pipelines.build import StageStatus, describe_corpus, describe_run, status
from pipelines.format import format_count
from pipelines.pipeline import DOCUMENT_STAGES
from pipelines.records.inputs import separate_stages
from pipelines.reports.charts import Chart, funnel_chart

# What the stages of the funnel read and write.
_RECORDS = {
    "scrape": ("submissions", "links"),
    "fetch": ("links", "pages"),
    **dict.fromkeys(DOCUMENT_STAGES, ("documents", "documents")),
    "extract": ("pages", "documents"),
    "rehydrate": ("links", "documents"),
    "tokenize": ("documents", "tokens"),
}
# A running stage writes its progress every second, in an object store every 30 seconds.
_INTERVAL_MS = 5_000


def show_overview(request: Request) -> Response:
    """Show the funnel from submissions to tokens and the stages, of which running ones are shown again and again."""
    site = site_of(request)
    described = _describe(site)
    stages: Sequence[StageStatus] = described["stages"]
    state: dict[str, Any] = {"funnel": _draw_funnel(stages), "describe_run": describe_run, **described}
    has_finished = any(stage.records_in for stage in stages) or not site.corpus
    interval = _INTERVAL_MS if any(stage.writer for stage in stages) else None
    return site.render(request, "overview.html", has_finished=has_finished, interval=interval, **state)


def _describe(site: Site) -> Mapping[str, Any]:
    """Return what `describe_corpus` does; of inputs, the stages among them."""
    if site.corpus is not None:
        return describe_corpus(site.corpus)
    folders, _ = separate_stages(site.source)
    return {"stages": status(folders, verify=False), "runs": {}, "pages": {}, "evaluated": []}


def _draw_funnel(stages: Sequence[StageStatus]) -> Chart:
    steps = []
    for stage in stages:
        if stage.stage in _RECORDS and stage.records_in:
            read, written = _RECORDS[stage.stage]
            tokens = sum(count for name, count in stage.counts.items() if name.endswith("_tokens"))
            result = tokens if written == "tokens" else stage.records_out
            name = f"{stage.stage}: {format_count(stage.records_in)} {read} → {format_count(result)} {written}"
            steps.append((name, stage.records_out, stage.dropped))
    caption = "What each stage read: the part that it kept, and the part that it dropped. A longer bar is more records."
    return funnel_chart("From submissions to tokens", caption, steps)


NAVIGATION = (("/", "Overview"),)
ROUTES = (Route("/", show_overview),)
