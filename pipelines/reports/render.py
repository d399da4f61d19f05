"""Renders the Jinja2 templates of the reports: every value is escaped, and an undefined name is an error."""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipelines.engine.journal import OutputFolder
from pipelines.engine.manifest import FileEntry
from pipelines.format import (
    escape_unprintable,
    format_bytes,
    format_count,
    format_decimal,
    format_duration,
    format_number,
    format_percent,
    plural,
)
from pipelines.records import shards

_BIDI_CONTROLS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def render(template: str, **values: Any) -> str:
    """Return the page of a template; the same values give the same bytes."""
    return ENVIRONMENT.get_template(template).render(values)


def write_page(output: str, name: str, page: str) -> FileEntry:
    """Write a page into the folder of a run, with the stage and the options of the run in its footer.

    There is no date, path or release of webtext, so that equal runs write equal files: the page itself shows where it
    lies and when it was written, and `index.html` of the corpus has the rest.
    """
    identity = OutputFolder(output).recorded_identity()
    footer = ENVIRONMENT.get_template("footer.html").render(identity=identity) if identity else ""
    return shards.write_file(output, name, page.replace("<footer>", f"<footer>{footer}", 1).encode())


def content_hash(content: str) -> str:
    """Return the hash by which a Content-Security-Policy admits one script or style element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def document_text(text: str) -> Markup:
    r"""Return text of a document as HTML that keeps its lines and is displayed in the order in which it is stored.

    Characters without a glyph that would disturb the page (directional overrides, ESC, halves of surrogate pairs) are
    written as `\x1b`; joiners and unusual spaces, which many scripts need, stay.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    kept = {c for c in {*lines} if c in "\n\t" or not (c in _BIDI_CONTROLS or unicodedata.category(c) in ("Cc", "Cs"))}
    return Markup.escape(escape_unprintable(lines, keep=kept))


def is_web_url(url: str | None) -> bool:
    """Return whether a page may link to a URL: only to http and https, without unprintable characters."""
    return url is not None and url.isprintable() and url.lower().startswith(("http://", "https://"))


ENVIRONMENT = Environment(
    loader=PackageLoader("pipelines.reports"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=lambda value: escape_unprintable(value) if type(value) is str else value,  # not Markup
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    "bytes": format_bytes,
    "content_hash": content_hash,
    "count": format_count,
    "decimal": format_decimal,
    "duration": format_duration,
    "plural": plural,
    "share": format_percent,
    "number": format_number,
}
ENVIRONMENT.globals |= {"document_text": document_text, "is_web_url": is_web_url}
