"""What `plain_hosts` flags is canonical as it is, and most real URLs are flagged."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.algorithms.web.plain_urls import plain_hosts
from pipelines.algorithms.web.urls import TRACKING_PARAMETERS, canonical_url, domain_of_host, host_of, registered_domain

# Pieces that a plain URL may hold, and pieces that look so but change a URL's canonical form.
_PIECES = [
    *"http:// https:// HTTP:// ftp:// // / . .. /./ /../ /. ? & ; # #! = + - _ ~ : @ * ! $ ' ( ) , % %41 %2e".split(),
    *"&amp; &lt; &lt &#38; &a; ;a :80 :443 user@ [::1] \\ | ^ ` { } < > é 。 www. a A 0 1.2 09 0x7f 127.0.0.1".split(),
    *"xn-- xn--a XN-- xn--bcher-kva ab--c localhost example.com co.uk blogspot.com .com com. -a a- _a com 1a".split(),
    *"utm_source=x utm_=1 UTM_Medium=y utm xutm_source=1 id=7 q q= ?? && ?& &? a=b=c =x == &=& fb_ref s_cid2=1".split(),
    *(f"{name}=1" for name in sorted(TRACKING_PARAMETERS)),
    *(name.upper() for name in sorted(TRACKING_PARAMETERS)),
    " ",
    "\t",
    "\n",
    "\x00",
    "\x7f",
    "\u200e",
    "\u00ad",
    "a" * 63,
    "a" * 64,
    "b." * 30,
]
_REAL = "http://www.example.co.uk/2013/05/a-page_of-it.html?id=7&q=a+b&page=2"


def _flagged(urls: list[str]) -> list[str | None]:
    """Return the host of each URL that is flagged, None for the others; they lie in one buffer, one after the other."""
    texts = [url.encode(errors="surrogatepass") for url in urls]
    ends = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    spans = np.array([(end - len(text) - 1, end - 1) for text, end in zip(texts, ends, strict=True)], np.int64)
    spans = spans.reshape(-1, 2)
    buffer = np.frombuffer(bytearray(b'"'.join(texts) + b'"' + b"?=utm_so"), np.uint8)
    hosts = np.full((len(urls), 2), 7, np.int64)
    plain_hosts(buffer, spans, hosts)
    found = [buffer[start:stop].tobytes().decode() for start, stop in hosts.tolist()]
    assert all(host or not stop for host, (_, stop) in zip(found, hosts.tolist(), strict=True))
    return [host or None for host in found]


def _check(urls: list[str]) -> int:
    """Hold that flagged URLs are canonical; return how many are flagged."""
    flagged = 0
    for url, host in zip(urls, _flagged(urls), strict=True):
        if host is not None:
            flagged += 1
            assert canonical_url(url) == url
            assert host == host_of(url)
            assert domain_of_host(host) == registered_domain(url)
    return flagged


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([_REAL, "https://a.b/", "http://example.com/x?a=1", "http://example.com/?"]))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        piece = draw(st.sampled_from(_PIECES) | st.characters(codec=None, exclude_categories=[]))
        text = text[:at] + piece + text[at + draw(st.integers(0, 3)) :]
    return text


_JOINED = st.lists(st.sampled_from(_PIECES), max_size=8).map("".join)


@settings(max_examples=600, deadline=None)
@given(st.lists(_mutated() | _JOINED.map("http://example.com".__add__) | _JOINED.map("http://".__add__), max_size=5))
@example(["http://a.b/", "http://a.b", "http://a./", "http://.a/", "http:///a", "http://", "https:/", "", "http://1/"])
@example(["http://example.com/?" + name + end for name in sorted(TRACKING_PARAMETERS) for end in ("", "=1", "&a")])
def test_what_is_flagged_is_canonical(urls: list[str]) -> None:
    _check(urls)


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_mutated_urls(seed: int) -> None:
    chance = random.Random(seed)
    urls = []
    for _ in range(6000):
        text = _REAL
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(_PIECES) + text[at + chance.randrange(4) :]
        urls.append(text)
    assert 1500 < _check(urls) < 5500


def test_sizes_of_hosts_and_urls() -> None:
    labels = [f"http://{'a' * size}.com/" for size in range(1, 70)]
    hosts = [f"http://{'abcdefg.' * size}{'b' * rest}.com/" for size in (30, 31, 32) for rest in range(1, 12)]
    paths = [f"http://example.com/{'a' * size}" for size in (4000, 4076, 4077, 4078, 5000, 70_000)]
    assert _check(labels) == 63
    assert 0 < _check(hosts) < len(hosts)
    assert 0 < _check(paths) < len(paths)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://www.example.co.uk/a/b.html",
        "http://example.com/?a",
        "http://example.com/a?b=1&c=2",
        "http://example.com/utm_source=x",
        "http://example.com/a;b?c=d;e",
        "http://example.com/a?u=http://other.com/?x",
    ],
)
def test_plain_urls_are_flagged(url: str) -> None:
    assert _flagged([url]) == [urlsplit(url).hostname]
    assert canonical_url(url) == url


def test_no_urls_at_all() -> None:
    assert _flagged([]) == []


def _real_urls(folder: Path) -> list[str]:
    urls = []
    for path in sorted(folder.glob("*.*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data).read()
        elif path.suffix == ".xz":
            data = lzma.decompress(data)
        records = [json.loads(line) for line in data.split(b"\n") if line.strip()]
        urls += [record["url"] for record in records if not record["is_self"]]
    return urls


def test_real_urls(shared_data: Path) -> None:
    urls = _real_urls(shared_data / "reddit")
    flagged = _check(urls)
    assert len(urls) > 60_000
    assert flagged >= 0.85 * len(urls)
