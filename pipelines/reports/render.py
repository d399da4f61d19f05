"""Renders the Jinja2 templates of the reports: every value is escaped, and an undefined name is an error."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipelines.format import (
    escape_unprintable,
    format_bytes,
    format_count,
    format_decimal,
    format_number,
    format_percent,
    plural,
)


def render(template: str, **values: Any) -> str:
    """Return the page of a template; the same values give the same bytes."""
    return ENVIRONMENT.get_template(template).render(values)


def content_hash(content: str) -> str:
    """Return the hash by which a Content-Security-Policy admits one script or style element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _finalize(value: Any) -> Any:
    return escape_unprintable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


ENVIRONMENT = Environment(
    loader=PackageLoader("pipelines.reports"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "bytes": format_bytes,
    "content_hash": content_hash,
    "count": format_count,
    "decimal": format_decimal,
    "plural": plural,
    "share": format_percent,
    "number": format_number,
}
