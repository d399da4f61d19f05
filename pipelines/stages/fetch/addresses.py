"""Which addresses belong to the public internet: the guard against requests into somebody's own network."""

from __future__ import annotations

import ipaddress
import socket

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """A request was about to go to an address outside the public internet."""


def is_public(address: str) -> bool:
    """Tell whether an IP address, as the operating system writes it, is one of the public internet.

    IPv4 addresses inside IPv6 ones (mapped, NAT64, 6to4) are judged as what they are.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (_last_four_bytes(ip) if ip in _NAT64 else None)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def literal_address(host: str) -> str | None:
    """Return the IP address that a host spells out, also as `0x7f.1` or `2130706433`; None for a true name."""
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


def _last_four_bytes(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(ip.packed[-4:])
