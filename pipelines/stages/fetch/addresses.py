"""Addresses of hosts: which are public, which a name spells out, and what names resolve to."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

# A name server that does not answer holds a thread for some seconds.
_LOOKUPS = 128
# For how long the addresses of a name are used again.
_KNOWN_S = 300.0
_MOST_KNOWN = 10_000

# Blocks that `ipaddress` counts as global, at least in some releases of Python: 6to4 relays; those for protocols, whose
# few public addresses are anycast addresses of others than HTTP (with Oracle Cloud's metadata, 192.0.0.192; Teredo,
# which embeds an obfuscated IPv4 address); documentation; and Azure's platform services, which are in no registry.
_IPV4_SPECIAL = tuple(map(ipaddress.IPv4Network, ("192.88.99.0/24", "192.0.0.0/24", "168.63.129.16/32")))
_IPV6_SPECIAL = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
# All public IPv6 hosts are here.
_IPV6_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Return whether an IP address, as the operating system formats it, belongs to the public internet.

    IPv4 addresses embedded in IPv6 (mapped, NAT64, 6to4) are classified as the IPv4 address.
    """
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast and not any(ip in block for block in _IPV4_SPECIAL)
    nat64 = ipaddress.IPv4Address(ip.packed[-4:]) if ip in _NAT64 else None
    embedded = ip.ipv4_mapped or ip.sixtofour or nat64
    if embedded is not None:
        return is_public(str(embedded))
    return ip in _IPV6_UNICAST and not any(ip in block for block in _IPV6_SPECIAL)


@functools.lru_cache(maxsize=_MOST_KNOWN)
def literal_address(host: str) -> str | None:
    """Return the IP address that a host name spells out, also as `0x7f.1` or `2130706433`; None for a DNS name.

    A final dot, which marks a DNS name as complete, is ignored.
    """
    host = host.removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host.strip("[]").split("%", 1)[0]))
    with contextlib.suppress(OSError, ValueError):
        return socket.inet_ntoa(socket.inet_aton(host))
    return None


class Names:
    """Looks names up in threads and remembers the answers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_LOOKUPS)
        self._lookups: OrderedDict[str, tuple[float, Future[list[str]]]] = OrderedDict()

    def ask(self, host: str) -> Future[list[str]]:
        """Return the lookup of a name, which may have ended, with its addresses or a socket.gaierror."""
        now = time.monotonic()
        asked_at, lookup = self._lookups.get(host, (now, None))
        if lookup is None or now - asked_at > _KNOWN_S or (lookup.done() and lookup.exception()):
            lookup = self._pool.submit(_look_up, host)
            self._lookups[host] = now, lookup
            if len(self._lookups) > _MOST_KNOWN:
                self._lookups.popitem(last=False)
        return lookup

    def close(self) -> None:
        """Forget the lookups that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    try:
        entries = socket.getaddrinfo(host, 80, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))
