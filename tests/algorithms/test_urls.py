"""The canonical form of URLs: what changes, what stays, and that it is one form."""

from __future__ import annotations

import html
import json
import re
import unicodedata
import urllib.parse
from pathlib import Path

import idna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.algorithms.web.urls import (
    TRACKING_PARAMETERS,
    canonical_url,
    domain_of_host,
    host_of,
    public_suffix_version,
    registered_domain,
)
from pipelines.storage.compression import open_decompressed


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTP://Example.COM/Path", "http://example.com/Path"),
        ("https://example.com/", "https://example.com/"),
        ("http://www.example.com/a?x=1#top", "http://www.example.com/a?x=1"),
        # white space and control characters
        ("  http://example.com/a\n", "http://example.com/a"),
        ("\ufeffhttp://example.com/a\u200b", "http://example.com/a"),
        ("http://example.com/a \u200e", "http://example.com/a"),
        ("http://exam\tple.com/a\r\nb\x00c", "http://example.com/abc"),
        ("http://example.com/a b", "http://example.com/a%20b"),
        # HTML entities, also escaped many times over; names of parameters are none
        ("http://example.com/?a=1&amp;b=2", "http://example.com/?a=1&b=2"),
        ("http://example.com/?a=1&amp;amp;amp;b=2", "http://example.com/?a=1&b=2"),
        ("http://example.com/?a=1&#38;b=2&#x26;c=3", "http://example.com/?a=1&b=2&c=3"),
        ("http://example.com/?q=&quot;x&quot;&lt;", "http://example.com/?q=%22x%22%3C"),
        ("http://example.com/?a=1&copy=2&notify=3&lt=4", "http://example.com/?a=1&copy=2&notify=3&lt=4"),
        ("http://example.com/?a=1&nosuchentity;b", "http://example.com/?a=1&nosuchentity;b"),
        # host
        ("http://example.com./", "http://example.com/"),
        ("http://EXAMPLE.com:80/", "http://example.com/"),
        ("https://example.com:443/", "https://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("http://example.com:08080/", "http://example.com:8080/"),
        ("http://example.com:/", "http://example.com/"),
        ("http://user:secret@example.com/", "http://example.com/"),
        ("http://ex%61mple.com/", "http://example.com/"),
        ("http://my_blog.example.com/", "http://my_blog.example.com/"),
        ("http://[2001:DB8:0:0:0:0:0:1]:8080/", "http://[2001:db8::1]:8080/"),
        ("http://127.0.0.1:8000/x", "http://127.0.0.1:8000/x"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://B\u00dcCHER\u3002example/", "http://xn--bcher-kva.example/"),
        ("http://stra\u00dfe.de/", "http://xn--strae-oqa.de/"),
        ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
        ("http://\u2603.net/", "http://xn--n3h.net/"),
        ("http://xn--a.example/", "http://xn--a.example/"),
        ("http://example.com.:80/", "http://example.com/"),
        # addresses, as browsers read them
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://127.1./", "http://127.0.0.1/"),
        ("http://[::ffff:1.2.3.4]/", "http://[::ffff:102:304]/"),
        # slashes, as browsers take them
        ("http:example.com/a", "http://example.com/a"),
        ("http:/example.com/a", "http://example.com/a"),
        ("http:///example.com/a", "http://example.com/a"),
        ("http:\\\\example.com\\a?b\\c", "http://example.com/a?b%5Cc"),
        # path
        ("http://example.com?x=1", "http://example.com/?x=1"),
        ("http://example.com/a/./b/../c", "http://example.com/a/c"),
        ("http://example.com/../../a/..", "http://example.com/"),
        ("http://example.com/a//b/", "http://example.com/a//b/"),
        ("http://example.com/a/%2e%2e/b", "http://example.com/b"),
        # percent-encoding
        ("http://example.com/%7euser/%c3%a9", "http://example.com/~user/%C3%A9"),
        ("http://example.com/é", "http://example.com/%C3%A9"),
        ("http://example.com/a%2fb", "http://example.com/a%2Fb"),
        ("http://example.com/100%", "http://example.com/100%25"),
        ("http://example.com/%4%31", "http://example.com/%2541"),
        ("http://example.com/?a[]=1|2", "http://example.com/?a%5B%5D=1%7C2"),
        ("http://example.com/?a=b+c%20d", "http://example.com/?a=b+c%20d"),
        # an apostrophe is sent as %27 in a query, but not in a path
        ("http://example.com/it's?it's", "http://example.com/it's?it's"),
        ("http://example.com/it%27s?it%27s", "http://example.com/it%27s?it's"),
        ("http://example.com/\ud83d", "http://example.com/%EF%BF%BD"),
        # parameters: order and repetition stay, tracking goes
        ("http://example.com/?b=2&a=1&b=3", "http://example.com/?b=2&a=1&b=3"),
        ("http://example.com/?utm_source=x&id=7&UTM_Medium=y", "http://example.com/?id=7"),
        ("http://example.com/?fbclid=x&gclid=y", "http://example.com/"),
        ("http://example.com/?utm%5Fsource=x&a", "http://example.com/?a"),
        ("http://example.com/?&a=1&&b=2&", "http://example.com/?a=1&b=2"),
        ("http://example.com/?&a=1", "http://example.com/?a=1"),
        ("http://example.com/?", "http://example.com/"),
        ("http://example.com/utm_source=x", "http://example.com/utm_source=x"),
        ("http://example.com/?my_utm_source=x", "http://example.com/?my_utm_source=x"),
        # the one fragment that names a page
        ("http://example.com/#!/page/7 b", "http://example.com/#!/page/7%20b"),
        ("http://example.com/#!", "http://example.com/"),
    ],
)
def test_canonical_form(text: str, wanted: str) -> None:
    assert canonical_url(text) == wanted
    assert canonical_url(wanted) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "Self", "/r/pics/comments/abc/", "example.com/a", "//example.com/a", "ftp://example.com/a",
        "mailto:a@example.com", "javascript:alert(1)", "http:", "http://", "http:///", "http://?q", "http://.",
        "http://a..b/", "http://example.com../", "http://a\u200db.com/", "http://a,b.com/",
        "http://ex ample.com/", "http://example.com:99999/", "http://example.com:x/", "http://[::1/",
        "http://[::g]/", "http://[fe80::1%25eth0]/", "http://192.168.0.257/", "http://[Imgur](http://i.imgur.com/5AZwS.jpg)",
        "http://[IMG]http://i.imgur.com/9oMoc.jpg[/IMG]", "http://a%2fb.com/", "http://a%00b.com/", "http://\ud800.com/",
        "http://" + "a" * 64 + ".com/", "http://" + "a." * 130 + "com/", "http://example.com/" + "a" * 70000,
        "http://\u2100.com/", "see http://example.com/",
    ],
)  # fmt: skip
def test_unusable_urls(text: str) -> None:
    assert canonical_url(text) is None


# Letters of Unicode 3.2: on later ones Python and idna may differ because one of them is older.
_LETTERS = st.characters(categories=["Ll", "Lu", "Lo", "Mn", "Nd"]).filter(
    lambda character: unicodedata.ucd_3_2_0.category(character) != "Cn"
)


@given(st.text(_LETTERS, min_size=1, max_size=12))
def test_international_hosts_follow_uts_46(label: str) -> None:
    try:
        wanted = idna.encode(f"{label}.example", uts46=True, transitional=False).decode()
    except idna.IDNAError:
        return  # IDNA 2008 refuses much that is typed all the same, and that browsers resolve
    assert canonical_url(f"http://{label}.example/") == f"http://{wanted}/"


def test_real_urls_of_2013_are_canonicalized_idempotently(shared_data: Path) -> None:
    unusable = []
    seen = 0
    with open_decompressed(str(shared_data / "reddit" / "submissions-2013.ndjson.zst")) as stream:
        for line in stream:
            text = json.loads(line)["url"]
            url = canonical_url(text)
            seen += 1
            if url is None:
                unusable.append(text)
            else:
                assert canonical_url(url) == url
                # The reference takes 20 times as long, so it checks every fourth.
                assert seen % 4 or url == _plainly(text)
    assert seen == 97_888
    # Two FTP addresses, the word "Self", and six pieces of markup on which `urllib.parse` raises.
    assert sorted(url[:9] for url in unusable) == [
        "Self", "ftp://ftp", "ftp://ftp", *["http://[I"] * 6
    ]  # fmt: skip


def _plainly(text: str) -> str:
    """Return the canonical form of a real URL by the standard library: slow, and only for what the real ones hold."""
    text = re.sub(r"&#?[A-Za-z0-9]+;", lambda entity: html.unescape(entity[0]), re.sub("(?:amp;)+", "amp;", text))
    parts = urllib.parse.urlsplit(text.strip(" \u200e"))
    assert parts.hostname is not None
    assert parts.hostname.isascii()
    netloc = parts.hostname.removesuffix(".") + ("" if parts.port in (80, None) else f":{parts.port}")
    path = _one_encoding(parts.path.replace("\\", "/"))
    while "/./" in path or "/../" in path:
        path = re.sub("^/\\.\\./|/\\./|/(?!\\.\\./)[^/]*/\\.\\./", "/", path, count=1)
    pieces = [piece for piece in _one_encoding(parts.query).replace("%27", "'").split("&") if piece]
    kept = [piece for piece in pieces if not re.match(_TRACKING, piece.lower())]
    fragment = _one_encoding(parts.fragment) if parts.fragment[:1] == "!" != parts.fragment else ""
    return urllib.parse.urlunsplit((parts.scheme, netloc, path or "/", "&".join(kept), fragment))


_TRACKING = "utm_|({})(=|$)".format("|".join(TRACKING_PARAMETERS))


def _one_encoding(text: str) -> str:
    text = re.sub("%(?![0-9A-Fa-f]{2})", "%25", text)
    text = re.sub("%[0-9A-Fa-f]{2}", lambda byte: byte[0].upper(), urllib.parse.quote(text, safe="%!$&'()*+,;=:@/?"))
    return re.sub(
        "%[0-7][0-9A-F]", lambda byte: re.sub("[^A-Za-z0-9._~-]", byte[0], urllib.parse.unquote(byte[0])), text
    )


@pytest.mark.parametrize(
    ("url", "domain"),
    [
        ("http://news.bbc.co.uk/2/hi", "bbc.co.uk"),
        ("http://a.b.example.com:8080/", "example.com"),
        ("http://me.blogspot.com/", "blogspot.com"),
        ("http://127.0.0.1:8000/", "127.0.0.1"),
        ("http://[::1]/", "::1"),
        ("http://localhost/", "localhost"),
        ("http://xn--bcher-kva.de/", "xn--bcher-kva.de"),
        ("no url", None),
    ],
)
def test_registered_domain(url: str, domain: str | None) -> None:
    assert registered_domain(url) == domain


def test_hosts_lose_case_port_and_final_dot() -> None:
    assert host_of("HTTP://User@WWW.Example.COM.:8080/x") == "www.example.com"
    assert domain_of_host("www.example.com") == "example.com"


def test_the_list_of_suffixes_has_a_version() -> None:
    version = public_suffix_version()
    assert re.fullmatch(r"tldextract-[0-9.]+-[0-9a-f]{16}", version)
    assert public_suffix_version() == version
