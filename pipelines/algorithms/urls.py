"""URLs as Reddit has them: the registered domain, and one canonical form for each page."""

from __future__ import annotations

import functools
import re

import tldextract

# The list that the package carries: no network, and the same answer on every machine.
_extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

_HOST = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]*)")


def host_of(url: str) -> str | None:
    """Return the lower-cased host of an absolute URL without port and final dot, or None where there is none."""
    match = _HOST.match(url)
    if match is None:
        return None
    return match[1].lower().rstrip(".").strip("[]") or None


def registered_domain(url: str) -> str | None:
    """Return the registered domain of a URL by the public suffix list (`bbc.co.uk`); the host where it has none."""
    host = host_of(url)
    return None if host is None else domain_of_host(host)


@functools.lru_cache(maxsize=65536)
def domain_of_host(host: str) -> str:
    """Return the registered domain of a host, or the host itself (an address, a bare name)."""
    return _extract(host).top_domain_under_public_suffix or host
