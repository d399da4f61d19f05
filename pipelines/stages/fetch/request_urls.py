"""The URL that is requested for a link, its origin, and which addresses are public (protection against SSRF)."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import urldefragauth

from pipelines.algorithms.web.urls import registered_domain
from pipelines.stages.fetch.outcomes import Failure

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


def classify_links(links: Sequence[str], max_per_domain: int | None) -> Iterator[tuple[int, str, Failure | None]]:
    """Yield the position of each link, its request, and why it is not to be sent."""
    seen: set[str] = set()
    pages = Counter[str | None]()
    for link, url in enumerate(links):
        failure: Failure | None = None
        wire_url = ""
        try:
            wire_url = request_url(url)
        except BadUrlError as error:
            failure = Failure("bad_url", str(error))
        else:
            if wire_url in seen:
                failure = Failure("duplicate_url", "an earlier link is the same request")
            elif max_per_domain:
                pages[domain := registered_domain(wire_url)] += 1
                if pages[domain] > max_per_domain:
                    failure = Failure("domain_limit", f"{max_per_domain} earlier links are of {domain}")
            seen.add(wire_url)
        yield link, wire_url, failure


# Blocks without public hosts, from IANA's IPv4 and IPv6 Special-Purpose Address Registries and multicast. The table is
# explicit because `ipaddress` changes between releases of Python: 3.11.7 counts 192.0.0.8 as global. 192.0.0.0/24
# (with Oracle Cloud's metadata, 192.0.0.192) and 2001::/23 are listed whole: their few public addresses are anycast
# addresses of protocols other than HTTP.
_IPV4_SPECIAL = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared; Alibaba Cloud's metadata (100.100.100.200)
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform services: in no registry, reachable from every virtual machine
        "169.254.0.0/16",  # link-local; metadata of most clouds (169.254.169.254)
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# All public IPv6 hosts are in 2000::/3. 2001::/23 includes Teredo, which embeds an obfuscated IPv4 address.
_IPV6_UNICAST = ipaddress.IPv6Network("2000::/3")
_IPV6_SPECIAL = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """A request was about to go to an address outside the public internet."""


def is_public(address: str) -> bool:
    """Return whether an IP address, as the operating system formats it, belongs to the public internet.

    IPv4 addresses embedded in IPv6 (mapped, NAT64, 6to4) are classified as the IPv4 address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in block for block in _IPV4_SPECIAL)
    nat64 = ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
    embedded = ip.ipv4_mapped or ip.sixtofour or nat64
    if embedded is not None:
        return is_public(str(embedded))
    return ip in _IPV6_UNICAST and not any(ip in block for block in _IPV6_SPECIAL)


def literal_address(host: str) -> str | None:
    """Return the IP address that a host name spells out, also as `0x7f.1` or `2130706433`; None for a DNS name.

    A final dot, which marks a DNS name as complete, is ignored.
    """
    host = host.removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host.strip("[]").split("%", 1)[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, ValueError):
        return None
