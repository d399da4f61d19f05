"""Public and private IP addresses: protection against requests into internal networks (SSRF)."""

from __future__ import annotations

import ipaddress
import socket

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """A request was about to go to an address outside the public internet."""


def is_public(address: str) -> bool:
    """Return whether an IP address, as the operating system formats it, belongs to the public internet.

    IPv4 addresses embedded in IPv6 (mapped, NAT64, 6to4) are classified as the IPv4 address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        nat64 = ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
        embedded = ip.ipv4_mapped or ip.sixtofour or nat64
        if embedded is not None:
            return is_public(str(embedded))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def literal_address(host: str) -> str | None:
    """Return the IP address that a host name spells out, also as `0x7f.1` or `2130706433`; None for a DNS name."""
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host.strip("[]").split("%", 1)[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None
