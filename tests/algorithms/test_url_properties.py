"""What holds of every canonical URL: equal URLs have one, nothing raises, and what is canonical stays as it is."""

from __future__ import annotations

import hashlib
import html
import re
import string
import urllib.parse

import ada_url
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipelines.algorithms.web import urls
from pipelines.algorithms.web.urls import TRACKING_PARAMETERS, canonical_url, host_of, registered_domain

# Text made of what matters to the rules, so that random strings meet them.
_WORDS = """
    http:// https:/ HTTP:\\\\ http: example.com EXAMPLE . .. / /./ /../ ? & ; # #! &amp; &am amp; &#38; &#x26; &lt; &#9;
    &semi; %61mp; % %2 %25 %2f %2E %41 %27 utm_source=x utm%5Fa fbclid= a=1 :80 :443 : @ user:pw@ [::1] [ ] é ß İ Σ 。 ☃
    xn-- xn--a xn--bcher-kva 0x7f 1.2 09 \\ ~ | ' " + * ! ,
""".split()
_PIECES = st.sampled_from([*_WORDS, " ", "\t", "\n", "\x00", "\u200d", "\u200e", "\u00ad", "\ud800", "\ufeff"])
_MIXED = st.lists(st.one_of(_PIECES, st.text(max_size=3)), max_size=8).map("".join)
_TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(codec=None, exclude_categories=[])),
    st.lists(_PIECES, max_size=12).map("".join),
    _MIXED.map(lambda text: "http://example.com" + text),
    _MIXED.map(lambda text: "http://" + text),
)


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """Return a real-looking URL with up to five pieces put in at, or in place of, random characters."""
    text = "https://User@www.Example.co.uk.:443/a/../b%7E/c.html?id=7&amp;utm_source=x&q=a+b#!/page"
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.one_of(_PIECES, st.characters())) + text[at + draw(st.integers(0, 3)) :]
    return text


@given(st.one_of(_TEXTS, _mutated()))
@example("http://example.com/?a&utm_source=x&%61mp;b")
@example("http://example.com/?&am&#10;p;b")
@example("http://0x7f.1../")
def test_never_raises_and_is_idempotent(text: str) -> None:
    url = canonical_url(text)
    if url is None:
        return
    assert canonical_url(url) == url
    assert set(url) <= set(string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/?%[]#")
    assert url.startswith(("http://", "https://"))
    assert host_of(url)
    assert registered_domain(url)


def test_hostile_text_is_handled_without_errors_in_bounded_time() -> None:
    nested = _nested("a", 12_000)
    for middle in (
        "a" * 100_000, "\x00" * 100_000, "&" * 60_000, "&amp;" * 13_000, "&#38;" * 13_000, nested, "/.." * 20_000,
        "?&" * 30_000, "%" * 65_000, "\ud800" * 65_000, "&a" * 30_000 + ";", "?a&utm_b" * 7_000, "#!" * 30_000,
        "é" * 60_000,
    ):  # fmt: skip
        for text in (middle, f"http://{middle}", f"http://example.com/{middle}", f"http://{middle}.com/"):
            url = canonical_url(text)
            assert url is None or canonical_url(url) == url


def _nested(character: str, depth: int) -> str:
    """Return a character reference whose last digit is itself written as a reference, and so on."""
    heads = []
    for _ in range(depth):
        code = str(ord(character))
        heads.append("&#" + code[:-1])
        character = code[-1]
    return "".join(heads) + character + ";" * depth


def test_deeply_nested_entities_are_resolved_up_to_a_bound() -> None:
    assert canonical_url("http://example.com/" + _nested("a", 31)) == "http://example.com/a"
    assert canonical_url("http://example.com/" + _nested("a", 32)) is None


@given(st.one_of(_TEXTS, _mutated()))
def test_the_fast_path_agrees_with_the_full_path(text: str) -> None:
    for each in (text, canonical_url(text)):
        if each is not None and urls._is_plain(each):
            assert _by_the_rules(each) == each


def _by_the_rules(text: str) -> str | None:
    """Return the canonical form by the parser and our rules, without the quick way."""
    shown = urls._without_invisible(text)
    assert urls._unescaped(shown) == shown
    return urls._canonical_once(shown)


@given(st.one_of(_TEXTS, _mutated()))
def test_urls_that_are_equal_in_browsers_are_equal(text: str) -> None:
    # The parsed form of a text without entities is another spelling of the same URL.
    text = text.replace("&", "").encode(errors="replace").decode()
    url = canonical_url(text)
    # No `assume`: so many texts are no URL that Hypothesis may give up.
    if url is not None:
        shown = urls._without_invisible(text)
        assert canonical_url(ada_url.normalize_url(shown)) == url


@given(st.one_of(_TEXTS, _mutated()), st.text(max_size=9))
def test_a_fragment_that_names_a_place_in_the_page_is_dropped(text: str, fragment: str) -> None:
    url = canonical_url(text)
    if url is not None and "#" not in url:
        assert canonical_url(f"{url}#place{fragment.replace(';', '')}") == url


# Variants that are equal by construction. Each takes a canonical URL in its parts and changes its spelling alone.
_PATH_CHARACTERS = string.ascii_letters + string.digits + "-_~!$'()*+,=:@"
_SEGMENT = st.text(_PATH_CHARACTERS, min_size=1, max_size=5)
_PARAMETER = st.tuples(st.sampled_from(["a", "id", "q", "copy", "lt", "amp"]), st.text(_PATH_CHARACTERS, max_size=4))
_HOSTS = st.sampled_from(
    [
        ("example.com", "example.com"),
        ("www.Bücher.example", "www.xn--bcher-kva.example"),
        ("straße.de", "xn--strae-oqa.de"),
    ]
)


@st.composite
def _spelt_differently(draw: st.DrawFn) -> tuple[str, str]:
    """Return two spellings of one URL."""
    scheme, port = draw(st.sampled_from([("http", "80"), ("https", "443")]))
    typed, ascii_host = draw(_HOSTS)
    path = "/" + "/".join(draw(st.lists(_SEGMENT, max_size=3)))
    parameters = [f"{name}={value}" for name, value in draw(st.lists(_PARAMETER, max_size=3))]
    plain = f"{scheme}://{ascii_host}{path}" + ("?" + "&".join(parameters) if parameters else "")
    for tracking in draw(st.lists(st.sampled_from(["utm_source=x", "UTM_Medium=", "fbclid=1", "gclid"]), max_size=2)):
        parameters.insert(draw(st.integers(0, len(parameters))), tracking)
    host = draw(st.sampled_from([typed, typed.upper().replace("SS", "ß"), ascii_host, ascii_host.upper()]))
    authority = host + draw(st.sampled_from(["", "."])) + draw(st.sampled_from(["", ":", ":" + port, ":0" + port]))
    query = "&".join(_percent_spelt(draw, parameter) for parameter in parameters)
    spelt = f"{_any_case(draw, scheme)}://{authority}{_percent_spelt(draw, path)}{'?' if query else ''}{query}"
    spelt += draw(st.sampled_from(["", "#", "#top", "#utm_source=x", "#a?b=c"]))
    for _ in range(draw(st.integers(0, 2))):
        spelt = html.escape(spelt)
    blank = st.text(" \t\r\n\u00a0\ufeff", max_size=2)
    return plain, draw(blank) + spelt + draw(blank)


def _any_case(draw: st.DrawFn, text: str) -> str:
    return draw(st.sampled_from([text, text.upper(), text.capitalize()]))


def _percent_spelt(draw: st.DrawFn, text: str) -> str:
    """Return a text with some unreserved characters percent-encoded, in hex digits of either case."""
    spelt = list(text)
    for at in draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=3)):
        if text and (text[at].isalnum() or text[at] in "-._~"):
            spelt[at] = draw(st.sampled_from(["%{:02x}", "%{:02X}"])).format(ord(text[at]))
    return "".join(spelt)


@given(_spelt_differently())
def test_equal_urls_have_one_form_and_one_hash(pair: tuple[str, str]) -> None:
    plain, spelt = pair
    forms = [canonical_url(text) for text in (plain, spelt, html.escape(spelt))]
    assert forms == [plain] * 3
    assert len({hashlib.sha256((form or "").encode()).digest() for form in forms}) == 1


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.text(string.ascii_lowercase, max_size=3)), max_size=6))
def test_parameters_keep_their_order(parameters: list[tuple[str, str]]) -> None:
    query = "&".join(f"{name}={value}" for name, value in parameters)
    spread = "".join(f"{name}={value}&utm_{name}=1&" for name, value in parameters)
    assert canonical_url(f"http://example.com/?{spread}") == f"http://example.com/{'?' if query else ''}{query}"


# The class that a scanner of bytes may pass by as canonical without asking.
_LABEL = st.from_regex(r"(?!xn--)[a-z0-9-]{1,63}", fullmatch=True)
_LAST_LABEL = st.from_regex(r"(?!xn--)[a-z][a-z0-9-]{0,62}", fullmatch=True)
_UNENCODED = string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@"
_QUERY_PIECE = st.text(_UNENCODED.replace("&", "") + "/?", min_size=1, max_size=8)


@st.composite
def _surely_canonical(draw: st.DrawFn) -> str:
    host = ".".join([*draw(st.lists(_LABEL, max_size=4)), draw(_LAST_LABEL)])
    assume(len(host) <= 253)
    path = "/" + draw(st.text(_UNENCODED + "/", max_size=20))
    assume("/." not in path)
    pieces = draw(st.lists(_QUERY_PIECE, max_size=4))
    names = {piece.partition("=")[0].lower() for piece in pieces}
    assume(not names & TRACKING_PARAMETERS and not any(name.startswith("utm_") for name in names))
    url = f"{draw(st.sampled_from(['http', 'https']))}://{host}{path}{'?' if pieces else ''}{'&'.join(pieces)}"
    assume(not re.search(r"&[#A-Za-z0-9]+;", url))
    return url


@given(_surely_canonical())
@example("http://a.b-xn--c.com/")
@example("http://-a-.r3---sn.0x7f.x--/")
@example("http://example.com/'?a='b'")
@example("https://" + "a" * 63 + ".com/;&amp=1?a;b&;c")
def test_canonical_urls_do_not_change(url: str) -> None:
    assert canonical_url(url) == url
    assert _by_the_rules(url) == url


@given(st.text(max_size=30))
def test_percent_encoding_never_changes_the_meaning(text: str) -> None:
    text = text.encode(errors="replace").decode()
    url = canonical_url("http://example.com/p?q=" + urllib.parse.quote(text, safe=""))
    assert url is not None
    assert urllib.parse.unquote(url) == "http://example.com/p?q=" + text
