"""URLs in Reddit submissions: the registered domain, and one canonical form per page."""

from __future__ import annotations

import functools
import hashlib
import html
import importlib.metadata
import itertools
import pkgutil
import re
from html.entities import html5
from urllib.parse import urlsplit, urlunsplit

import ada_url
import tldextract

from pipelines.algorithms.web.text_repair import replace_surrogates

# The version of the rules below. Raise it with every change that gives some URL another canonical form, a new release
# of ada-url among them if it does so: links of before and after must not be compared with each other.
CANONICAL_RULES = 3

# Query parameters that only tell who clicked where, and never choose the page. `utm_...` goes by its prefix.
TRACKING_PARAMETERS = frozenset(
    """
    __hsfp __hssc __hstc __twitter_impression _branch_match_id _ga _gl _hsenc _hsmi _openstat dclid epik fb_action_ids
    fb_action_types fb_ref fb_source fbclid gbraid gclid gclsrc gs_l guccounter guce_referrer guce_referrer_sig
    hsctatracking igsh igshid li_fat_id mc_cid mc_eid mkt_tok ml_subscriber ml_subscriber_hash msclkid oly_anon_id
    oly_enc_id rb_clickid s_cid srsltid ttclid twclid vero_conv vero_id wbraid wickedid yclid ysclid
    """.split()
)

# The list that the package carries: no network, and the same answer on every machine.
_extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

_HOST = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]*)")

# Real URLs reach 9,255 characters; what is longer than this is data, not an address.
_MAX_CHARACTERS = 65536
# Nobody escapes so often by accident (a run of `amp;` counts once); without a bound, hostile text takes many seconds.
_MAX_ROUNDS = 32

# What most URLs are: nothing here for any rule to change, tracking parameters aside. Possessive, so never slow.
_PLAIN_URL = re.compile(
    r"https?://(?=[^/]{1,253}/)(?:(?!xn--)[a-z0-9-]{1,63}\.)*(?!xn--)[a-z][a-z0-9-]{0,62}"
    r"(?:/(?!\.)[A-Za-z0-9\-._~!$&'()*+,=:@]*+)++"
    r"(?:\?([A-Za-z0-9\-._~!$'()*+,=:@/?]++(?:&[A-Za-z0-9\-._~!$'()*+,=:@/?]++)*+))?"
)
# What the parser returns: every part stands at its place, and is ASCII.
_PARSED = re.compile(r"(https?://)(?:[^@/]*@)?([^/:\[]+|\[[^\]]+\])(:[0-9]+)?(/[^?#]*)(?:\?([^#]*))?(?:#(.*))?")
# The parser also takes hosts that no name server would, such as `a,b.com` and `a..b`.
_HOST_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")

_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_EDGES = (
    "".join(map(chr, [*range(0x21), *range(0x2000, 0x2010), *range(0x2028, 0x2030), *range(0x205F, 0x2070)]))
    + "\x7f\x85\xa0\u1680\u3000\ufeff"
)
_AMPERSANDS = re.compile(r"&(?:(?:amp|AMP|#0{0,5}38|#[xX]0{0,4}26);)+")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

_ENCODED = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?]*")
_TO_ENCODE = re.compile(r"%([0-9A-Fa-f]{2})?|[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%]+")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def host_of(url: str) -> str | None:
    """Return the lower-cased host of an absolute URL without port and final dot, or None if it has none."""
    match = _HOST.match(url)
    if match is None:
        return None
    return match[1].lower().rstrip(".").strip("[]") or None


def registered_domain(url: str) -> str | None:
    """Return the registered domain of a URL by the public suffix list (`bbc.co.uk`); the host if it has none."""
    host = host_of(url)
    return None if host is None else domain_of_host(host)


@functools.lru_cache(maxsize=65536)
def domain_of_host(host: str) -> str:
    """Return the registered domain of a host, or the host itself (an address, a bare name)."""
    return _extract(host).top_domain_under_public_suffix or host


def has_public_suffix(host: str) -> bool:
    """Return whether a host is below a suffix of the public suffix list, or one: `a.co.uk`, not `logo.png`."""
    return bool(_extract(host).suffix)


@functools.cache
def public_suffix_version() -> str:
    """Return the version of the public suffix list behind `domain_of_host`: that of tldextract, and the list's hash."""
    suffixes = pkgutil.get_data("tldextract", ".tld_set_snapshot") or b""
    return f"tldextract-{importlib.metadata.version('tldextract')}-{hashlib.sha256(suffixes).hexdigest()[:16]}"


def id_of_url(url: str) -> str:
    """Return the document id for a URL: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def is_url_id(id: str) -> bool:
    """Return whether an id looks like one of `id_of_url`."""
    return re.fullmatch("[0-9a-f]{32}", id) is not None


def canonical_url(text: str) -> str | None:
    """Return the canonical form of an http(s) URL, by which links are compared, or None for other texts.

    Never raises, and changes nothing when applied again. HTML entities are resolved; white space, control characters,
    credentials, default port, fragment and tracking parameters go; the host becomes lower-case ASCII; percent-encoding
    is made uniform; dot segments are resolved. Scheme, `www.`, path case and the order of parameters stay.
    """
    for _ in range(_MAX_ROUNDS):
        if _is_plain(text):
            return text
        if len(text) > _MAX_CHARACTERS:
            return None
        text = _without_invisible(text)
        unescaped = _unescaped(text)
        if unescaped != text:
            text = unescaped  # and what was escaped may have been escaped before
            continue
        start, _, fragment = text.partition("#")
        if not fragment.startswith("!") and _is_plain(start):
            return start
        url = _canonical_once(text)
        if url is None or len(url) > _MAX_CHARACTERS:
            return None
        # Decoding `%61mp;` or leaving out a parameter may have made a new entity.
        if url == text or not _ENTITY.search(url):
            return url
        text = url
    return None


def near_urls(url: str) -> tuple[str, ...]:
    """Return the canonical URLs that differ from one only in the scheme, `www.`, or a slash at the end of the path."""
    parts = urlsplit(url)
    near: dict[str, None] = {}
    for scheme, www, slash in itertools.product(("http", "https"), ("", "www."), ("", "/")):
        host = www + parts.netloc.removeprefix("www.")
        path = parts.path.removesuffix("/") + slash
        variant = canonical_url(urlunsplit((scheme, host, path, parts.query, parts.fragment)))
        if variant is not None and variant != url:
            near[variant] = None
    return tuple(near)


def _is_plain(text: str) -> bool:
    """Return True for most canonical URLs, quickly; False means unknown."""
    match = _PLAIN_URL.fullmatch(text)
    if match is None or len(text) > _MAX_CHARACTERS:
        return False
    return match[1] is None or not any(map(_is_tracking, match[1].split("&")))


def _without_invisible(text: str) -> str:
    return replace_surrogates(_CONTROLS.sub("", text.strip(_EDGES)))


def _unescaped(text: str) -> str:
    return _ENTITY.sub(_character, _AMPERSANDS.sub("&", text)) if "&" in text and ";" in text else text


def _character(entity: re.Match[str]) -> str:
    # `html.unescape` would also take prefixes without a semicolon, and make `&notify=1` into `¬ify=1`.
    name = entity[0][1:]
    return html.unescape(entity[0]) if name[0] == "#" else html5.get(name, entity[0])


def _canonical_once(text: str) -> str | None:
    """Parse as browsers do, then canonicalize the parts."""
    try:
        match = _PARSED.fullmatch(ada_url.normalize_url(text))
    except ValueError:
        return None
    if match is None:
        return None
    scheme, host, port, path, query, fragment = match.groups("")
    host = host.removesuffix(".")
    if host[:1] != "[" and not _HOST_NAME.fullmatch(host):
        return None
    if query:
        # A browser sends an apostrophe in a query as `%27`, so the two are one there; elsewhere they are not.
        pieces = _encoded(query).replace("%27", "'").split("&")
        query = "&".join(piece for piece in pieces if piece and not _is_tracking(piece))
    # `#!` names the page itself on sites of 2010 to 2014; any other fragment names a place in it.
    kept = "#" + _encoded(fragment) if fragment.startswith("!") and len(fragment) > 1 else ""
    return f"{scheme}{host}{port}{_encoded(path)}{'?' if query else ''}{query}{kept}"


def _is_tracking(piece: str) -> bool:
    name = piece.partition("=")[0].lower()
    return name in TRACKING_PARAMETERS or name.startswith("utm_")


def _encoded(text: str) -> str:
    """Normalize percent-encoding (RFC 3986, section 2): decode unreserved characters, upper-case hex digits."""
    return text if _ENCODED.fullmatch(text) else _TO_ENCODE.sub(_encoded_run, text)


def _encoded_run(run: re.Match[str]) -> str:
    if run[1]:
        character = chr(int(run[1], 16))
        return character if character in _UNRESERVED else run[0].upper()
    return "".join(f"%{byte:02X}" for byte in run[0].encode())
