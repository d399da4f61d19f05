"""Public and private addresses."""

from __future__ import annotations

import pytest

from pipelines.stages.fetch.addresses import is_public, literal_address

_PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]
# The first and last address of every block, with its neighbors outside: IANA's registries of 2025, and cloud metadata.
_BLOCKS = [
    ("0.0.0.0", "0.255.255.255", "", "1.0.0.0"),
    ("10.0.0.0", "10.255.255.255", "9.255.255.255", "11.0.0.0"),
    ("100.64.0.0", "100.127.255.255", "100.63.255.255", "100.128.0.0"),
    ("127.0.0.0", "127.255.255.255", "126.255.255.255", "128.0.0.0"),
    ("168.63.129.16", "168.63.129.16", "168.63.129.15", "168.63.129.17"),
    ("169.254.0.0", "169.254.255.255", "169.253.255.255", "169.255.0.0"),
    ("172.16.0.0", "172.31.255.255", "172.15.255.255", "172.32.0.0"),
    ("192.0.0.0", "192.0.0.255", "191.255.255.255", "192.0.1.0"),
    ("192.0.2.0", "192.0.2.255", "192.0.1.255", "192.0.3.0"),
    ("192.88.99.0", "192.88.99.255", "192.88.98.255", "192.88.100.0"),
    ("192.168.0.0", "192.168.255.255", "192.167.255.255", "192.169.0.0"),
    ("198.18.0.0", "198.19.255.255", "198.17.255.255", "198.20.0.0"),
    ("198.51.100.0", "198.51.100.255", "198.51.99.255", "198.51.101.0"),
    ("203.0.113.0", "203.0.113.255", "203.0.112.255", "203.0.114.0"),
    ("224.0.0.0", "255.255.255.255", "223.255.255.255", ""),
    ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2000:ffff::", "2001:200::"),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db7:ffff::", "2001:db9::"),
    ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "3ffe:ffff::", "3fff:1000::"),
    ("100::", "1fff:ffff::", "", "2000::"),
    ("4000::", "ffff:ffff::", "3fff:ffff::", ""),
]
_PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "0.0.0.0", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1",
    "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2002:a00:1::", "::7f00:1",
    "192.0.0.8", "192.0.0.192", "100.100.100.200", "::ffff:192.0.0.8", "64:ff9b::c000:8", "64:ff9b:1::808:808",
    "5f00::1", "fd00:ec2::254", "fd20:ce::254", "2001:0:808:808::1", "100::1", "2001:2::1",
]  # fmt: skip


@pytest.mark.parametrize("address", _PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", _PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(("first", "last", "before", "after"), _BLOCKS)
def test_blocks_of_special_purpose_addresses(first: str, last: str, before: str, after: str) -> None:
    assert not is_public(first)
    assert not is_public(last)
    assert all(is_public(neighbor) for neighbor in (before, after) if neighbor)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        ("printer.localhost", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("[::1]", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("8.8.8.8", "8.8.8.8"),
        ("localhost.", "127.0.0.1"),
        ("printer.localhost.", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("0x7f.1.", "127.0.0.1"),
        ("example.org.", None),
        ("example.org", None),
        ("10.example.org", None),
        ("bücher.example", None),
    ],
)
def test_literal_addresses(host: str, address: str | None) -> None:
    assert literal_address(host) == address
