"""The URL that is requested for a link, and the origin whose queue it waits in."""

from __future__ import annotations

import contextlib
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import urldefragauth

_SCHEMES = ("http://", "https://")
# warcio reads at most 16,384 bytes of a line, such as `WARC-Target-URI: ` and the URL.
_MAX_URL_BYTES = 16_000
_PORTS = {"http": 80, "https": 443}


class BadUrlError(ValueError):
    """A URL that cannot be requested."""


def request_url(url: str) -> str:
    """Return the form of a URL that is sent: ASCII, escaped, without fragment, user and password.

    Raises BadUrlError for a scheme other than http and https, or an invalid host.
    """
    if not url.strip().lower().startswith(_SCHEMES):
        raise BadUrlError("is not an http or https URL")
    prepared = requests.PreparedRequest()
    try:
        prepared.prepare_url(url.strip(), None)
        encoded = str(urldefragauth(str(prepared.url)))
        url_origin(encoded)
        (urlsplit(encoded).hostname or "").encode("idna")  # labels must have 1 to 63 bytes
    except ValueError as error:  # what requests and urllib raise for URLs are all ValueErrors
        raise BadUrlError(str(error)) from error
    if not encoded.isascii():
        raise BadUrlError("cannot be written in ASCII")
    if len(encoded) > _MAX_URL_BYTES:
        raise BadUrlError(f"has more than {_MAX_URL_BYTES} bytes ({len(encoded)})")
    return encoded


def redirect_url(base: str, location: str) -> str:
    """Resolve a `Location` header; raise BadUrlError if the result cannot be requested."""
    # http.client reads headers as Latin-1; servers write UTF-8.
    with contextlib.suppress(UnicodeError):
        location = location.encode("latin-1").decode("utf-8")
    try:
        return request_url(urljoin(base, location.strip()))
    except ValueError as error:
        raise BadUrlError(str(error)) from error


def url_origin(url: str) -> str:
    """Return scheme, host and port of a URL from `request_url`: the scope of robots.txt and of the per-host delay."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise BadUrlError("has no host")
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"


def robots_url(url: str) -> str:
    """Return the URL of the robots.txt that applies to a URL from `request_url`."""
    return urljoin(url, "/robots.txt")
