"""The URLs that are requested."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.stages.fetch import links
from pipelines.stages.fetch.links import redirect_url, request_url, url_origin
from pipelines.stages.fetch.outcomes import Failure


@pytest.mark.parametrize(
    ("url", "wire"),
    [
        ("http://Example.ORG", "http://example.org/"),
        ("http://example.org/a#part", "http://example.org/a"),
        ("http://user:secret@example.org/a", "http://example.org/a"),
        ("  http://example.org/a b?q=ä ", "http://example.org/a%20b?q=%C3%A4"),
        ("http://bücher.example/ü", "http://xn--bcher-kva.example/%C3%BC"),
        ("HTTP://example.org:8080/%7euser", "http://example.org:8080/~user"),
        ("https://[2001:db8::1]/x", "https://[2001:db8::1]/x"),
    ],
)
def test_request_urls(url: str, wire: str) -> None:
    assert request_url(url) == wire


@pytest.mark.parametrize(
    "url",
    ["", "example.org", "ftp://example.org/", "mailto:a@example.org", "javascript:alert(1)", "http://", "http:///path",
     "http://[::1", "http://*.example.org/", "http://example.org:99999/", "httpx://example.org/"],
)  # fmt: skip
def test_urls_that_cannot_be_requested(url: str) -> None:
    with pytest.raises(Failure):
        request_url(url)


def test_a_url_that_does_not_fit_into_a_line_of_warc_is_refused() -> None:
    assert len(request_url("http://example.org/" + "a" * 15_900)) < 16_000
    for url in ("http://example.org/" + "a" * 16_000, "http://example.org/" + "ä" * 5_000):
        with pytest.raises(Failure, match="has more than 16000 bytes"):
            request_url(url)
    with pytest.raises(Failure):
        redirect_url("http://example.org/", "/" + "a" * 16_000)


@given(st.one_of(st.text(), st.text().map("http://{}".format), st.text().map("https://example.org/{}".format)))
def test_any_text_is_refused_or_becomes_stable_ascii(text: str) -> None:
    try:
        wire = request_url(text)
    except Failure:
        return
    assert wire.isascii()
    assert "#" not in wire
    assert request_url(wire) == wire
    assert url_origin(wire).startswith(("http://", "https://"))


@given(st.text())
def test_any_location_is_refused_or_resolved(location: str) -> None:
    try:
        url = redirect_url("http://example.org/a/b", location)
    except Failure:
        return
    assert request_url(url) == url


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/c", "http://example.org/c"),
        ("c?d#e", "http://example.org/a/c?d"),
        ("//other.example/x", "http://other.example/x"),
        ("https://example.org/", "https://example.org/"),
        ("/caf\u00c3\u00a9", "http://example.org/caf%C3%A9"),  # UTF-8, read as Latin-1
        ("/caf\u00e9", "http://example.org/caf%C3%A9"),  # Latin-1
    ],
)
def test_redirects(location: str, url: str) -> None:
    assert redirect_url("http://example.org/a/b", location) == url


def test_origins_include_the_port() -> None:
    assert url_origin("http://example.org/a") == "http://example.org:80"
    assert url_origin("https://example.org/a") == "https://example.org:443"
    assert url_origin("https://example.org:8443/a") == "https://example.org:8443"


def test_urls_that_are_not_prepared_are_as_requests_would_send_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(1)
    hosts, ends = (
        ["a", "b1.c", "x-", "-y", ".", ".com", "org", "1", "A"],
        ["", "/", ":80/", ":0/", ":45000/", ":99999/", "/?", "/a/"],
    )
    urls = [
        f"http://{''.join(source.choices(hosts, k=2))}.com{source.choice(ends)}"
        f"{''.join(source.choices('ab./-_?&=%:@~;,+1A0', k=source.randint(0, 8)))}"
        for _ in range(20_000)
    ]
    urls += [url.replace("//", f"//{'.'.join(map(str, source.choices([0, 1, '01', 127, 300], k=4)))}/") for url in urls]
    plain = [url for url in urls if links._PLAIN.fullmatch(url)]
    assert len(plain) > 500
    monkeypatch.setattr(links, "_PLAIN", re.compile("(?!)"))
    assert [links.request_url(url) for url in plain] == plain
