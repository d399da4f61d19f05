"""The overview: the stages of the corpus, how far running ones are, and the reports."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse.site import site_of
from pipelines.build import status


def show_overview(request: Request) -> Response:
    """Show the state of each stage."""
    site = site_of(request)
    return site.render(request, "overview.html", stages=status(site.source, verify=False))


NAVIGATION = (("/", "Overview"),)
ROUTES = (Route("/", show_overview),)
