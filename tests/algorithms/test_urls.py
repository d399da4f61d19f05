"""The canonical form of URLs: what changes, what stays, and that it is one form."""

from __future__ import annotations

import json
import string
import unicodedata
from pathlib import Path

import idna
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.algorithms.urls import canonical_url, domain_of_host, host_of, registered_domain
from pipelines.core.compression import open_decompressed


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
        # slashes, as browsers take them
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
        ("http://example.com/\ud83d", "http://example.com/%EF%BF%BD"),
        # parameters: order and repetition stay, tracking goes
        ("http://example.com/?b=2&a=1&b=3", "http://example.com/?b=2&a=1&b=3"),
        ("http://example.com/?utm_source=x&id=7&UTM_Medium=y", "http://example.com/?id=7"),
        ("http://example.com/?fbclid=x&gclid=y", "http://example.com/"),
        ("http://example.com/?utm%5Fsource=x&a", "http://example.com/?a"),
        ("http://example.com/?&a=1&&b=2&", "http://example.com/?a=1&b=2"),
        ("http://example.com/?", "http://example.com/"),
        ("http://example.com/utm_source=x", "http://example.com/utm_source=x"),
        ("http://example.com/?my_utm_source=x", "http://example.com/?my_utm_source=x"),
        # the one fragment that names a page
        ("http://example.com/#!/page/7 b", "http://example.com/#!/page/7%20b"),
        ("http://example.com/#!", "http://example.com/"),
    ],
)
def test_one_form(text: str, wanted: str) -> None:
    assert canonical_url(text) == wanted
    assert canonical_url(wanted) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "Self", "/r/pics/comments/abc/", "example.com/a", "//example.com/a", "ftp://example.com/a",
        "mailto:a@example.com", "javascript:alert(1)", "http:", "http://", "http:///", "http://?q", "http://.",
        "http://a..b/", "http://ex ample.com/", "http://example.com:99999/", "http://example.com:x/", "http://[::1/",
        "http://[::g]/", "http://[fe80::1%25eth0]/", "http://[Imgur](http://i.imgur.com/5AZwS.jpg)",
        "http://[IMG]http://i.imgur.com/9oMoc.jpg[/IMG]", "http://a%2fb.com/", "http://a%00b.com/", "http://\ud800.com/",
        "http://" + "a" * 64 + ".com/", "http://" + "a." * 130 + "com/", "http://example.com/" + "a" * 70000,
        "http://\u2100.com/", "see http://example.com/",
    ],
)  # fmt: skip
def test_what_is_no_usable_url(text: str) -> None:
    assert canonical_url(text) is None


# Text made of what matters to the rules, so that random strings meet them.
_WORDS = """
    http:// https:/ HTTP:\\\\ example.com EXAMPLE . .. / /./ /../ ? & ; # #! &amp; &am amp; &#38; &#x26; &lt; &#9;
    &semi; %61mp; % %2 %25 %2f %2E %41 utm_source=x utm%5Fa fbclid= a=1 :80 :443 : @ user:pw@ [::1] [ ] é ß İ Σ 。 ☃
    xn-- \\ ~ | ' " +
""".split()
_PIECES = st.sampled_from([*_WORDS, " ", "\t", "\n", "\x00", "\u200d", "\u00ad", "\ud800", "\ufeff"])
_MIXED = st.lists(st.one_of(_PIECES, st.text(max_size=3)), max_size=8).map("".join)
_TEXTS = st.one_of(
    st.text(),
    st.lists(_PIECES, max_size=12).map("".join),
    _MIXED.map(lambda text: "http://example.com" + text),
    _MIXED.map(lambda text: "http://" + text),
)


@given(_TEXTS)
@example("http://example.com/?a&utm_source=x&%61mp;b")
@example("http://example.com/?&am&#10;p;b")
def test_never_raises_and_is_idempotent(text: str) -> None:
    url = canonical_url(text)
    if url is None:
        return
    assert canonical_url(url) == url
    assert set(url) <= set(string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/?%[]#")
    assert url.startswith(("http://", "https://"))
    assert host_of(url)
    assert registered_domain(url)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.text(string.ascii_lowercase, max_size=3)), max_size=6))
def test_parameters_keep_their_order(parameters: list[tuple[str, str]]) -> None:
    query = "&".join(f"{name}={value}" for name, value in parameters)
    spread = "".join(f"{name}={value}&utm_{name}=1&" for name, value in parameters)
    assert canonical_url(f"http://example.com/?{spread}") == f"http://example.com/{'?' if query else ''}{query}"


# Letters of Unicode 3.2: on later ones Python and idna may differ because one of them is older.
_LETTERS = st.characters(categories=["Ll", "Lu", "Lo", "Mn", "Nd"]).filter(
    lambda character: unicodedata.ucd_3_2_0.category(character) != "Cn"
)


@given(st.text(_LETTERS, min_size=1, max_size=12))
def test_international_hosts_are_those_of_uts_46(label: str) -> None:
    try:
        wanted = idna.encode(f"{label}.example", uts46=True, transitional=False).decode()
    except idna.IDNAError:
        return  # IDNA 2008 refuses much that is typed all the same, and that browsers resolve
    assert canonical_url(f"http://{label}.example/") == f"http://{wanted}/"


def test_all_real_urls_of_2013_have_one_form(shared_data: Path) -> None:
    unusable = []
    seen = 0
    with open_decompressed(str(shared_data / "reddit" / "submissions-2013.ndjson.zst")) as stream:
        for line in stream:
            record = json.loads(line)
            url = canonical_url(record["url"])
            seen += 1
            if url is None:
                unusable.append(record["url"])
            else:
                assert canonical_url(url) == url
    assert seen == 97_888
    # Two FTP addresses, the word "Self", and six pieces of markup on which `urllib.parse` raises.
    assert sorted(url[:9] for url in unusable) == [
        "Self", "ftp://ftp", "ftp://ftp", *["http://[I"] * 6
    ]  # fmt: skip


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


def test_a_host_keeps_neither_case_nor_port_nor_final_dot() -> None:
    assert host_of("HTTP://User@WWW.Example.COM.:8080/x") == "www.example.com"
    assert domain_of_host("www.example.com") == "example.com"
