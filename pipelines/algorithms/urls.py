"""URLs as Reddit has them: the registered domain, and one canonical form for each page."""

from __future__ import annotations

import functools
import html
import ipaddress
import re
import unicodedata
import urllib.parse
from html.entities import html5

import tldextract

# The list that the package carries: no network, and the same answer on every machine.
_extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

_HOST = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]*)")

# Real URLs reach 9,255 characters; what is longer than this is data, not an address.
_MAX_CHARACTERS = 65536

# Query parameters that only tell who clicked where, and never choose the page. `utm_...` goes by its prefix.
TRACKING_PARAMETERS = frozenset(
    """
    __hsfp __hssc __hstc __twitter_impression _branch_match_id _ga _gl _hsenc _hsmi _openstat dclid epik fb_action_ids
    fb_action_types fb_ref fb_source fbclid gbraid gclid gclsrc gs_l guccounter guce_referrer guce_referrer_sig
    hsctatracking igsh igshid li_fat_id mc_cid mc_eid mkt_tok ml_subscriber ml_subscriber_hash msclkid oly_anon_id
    oly_enc_id rb_clickid s_cid srsltid ttclid twclid vero_conv vero_id wbraid wickedid yclid ysclid
    """.split()
)

_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(https?):[/\\]+([^/?#\\]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(?:.*@)?(\[[^\]]*\]|[^:]*)(?::([0-9]{0,5}))?", re.DOTALL)
_ASCII_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_MAX_HOST_CHARACTERS = 253

_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_EDGES = "".join(map(chr, range(0x21))) + "\x7f\x85\xa0\u2000\u200b\u2028\u2029\u202f\u2060\u3000\ufeff"
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_AMPERSANDS = re.compile(r"&(?:amp;)+")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

_PLAIN = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/?]*")
_TO_ENCODE = re.compile(r"%([0-9A-Fa-f]{2})?|[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%]+")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

_DOTS = re.compile(r"[\u3002\uff0e\uff61]")
_IGNORED_IN_HOSTS = re.compile(
    r"[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060\u2064\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0100-\U000e01ef]"
)
_UNFOLDED = {"ß": "ß", "ẞ": "ß", "ς": "ς"}
_JOINERS = "\u200c\u200d"


def host_of(url: str) -> str | None:
    """Return the lower-cased host of an absolute URL without port and final dot, or None where there is none."""
    match = _HOST.match(url)
    if match is None:
        return None
    return match[1].lower().rstrip(".").strip("[]") or None


def registered_domain(url: str) -> str | None:
    """Return the registered domain of a URL by the public suffix list (`bbc.co.uk`); the host where it has none."""
    host = host_of(url)
    return None if host is None else domain_of_host(host)


@functools.lru_cache(maxsize=65536)
def domain_of_host(host: str) -> str:
    """Return the registered domain of a host, or the host itself (an address, a bare name)."""
    return _extract(host).top_domain_under_public_suffix or host


def canonical_url(text: str) -> str | None:
    """Return the one form of an http(s) URL by which links are compared, or None where the text is no such URL.

    Never raises, and changes nothing when applied again. HTML entities are resolved; white space, control characters,
    credentials, default port, fragment and tracking parameters go; the host becomes lower-case ASCII; percent-encoding
    is made uniform; dot segments are resolved. Scheme, `www.`, path case and the order of parameters stay.
    """
    while len(text) <= _MAX_CHARACTERS:
        url = _canonical_once(_cleaned(text))
        if url is None or len(url) > _MAX_CHARACTERS:
            return None
        # Decoding `%61mp;` or leaving out a parameter may have made a new entity.
        if url == text or not _ENTITY.search(url):
            return url
        text = url
    return None


def _cleaned(text: str) -> str:
    text = _CONTROLS.sub("", text.strip(_EDGES))
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    while "&" in text and ";" in text:
        # Some URLs were escaped many times over: `&amp;amp;amp;feature=user`.
        plain = _ENTITY.sub(_character, _AMPERSANDS.sub("&", text))
        if plain == text:
            break
        text = _SURROGATES.sub("\ufffd", _CONTROLS.sub("", plain.strip(_EDGES)))
    return text


def _character(entity: re.Match[str]) -> str:
    # `html.unescape` would also take prefixes without a semicolon, and make `&notify=1` into `¬ify=1`.
    name = entity[0][1:]
    return html.unescape(entity[0]) if name[0] == "#" else html5.get(name, entity[0])


def _canonical_once(text: str) -> str | None:
    match = _URL.fullmatch(text)
    if match is None:
        return None
    scheme = match[1].lower()
    authority = _canonical_authority(scheme, match[2])
    if authority is None:
        return None
    query = _canonical_query(match[4]) if match[4] else ""
    # `#!` names the page itself on sites of 2010 to 2014; any other fragment names a place in it.
    fragment = match[5] or ""
    kept = "#" + _encoded(fragment) if fragment.startswith("!") and len(fragment) > 1 else ""
    return f"{scheme}://{authority}{_canonical_path(match[3])}{'?' if query else ''}{query}{kept}"


def _canonical_authority(scheme: str, text: str) -> str | None:
    match = _AUTHORITY.fullmatch(text)
    host = None if match is None else _canonical_host(match[1])
    if match is None or host is None:
        return None
    port = int(match[2]) if match[2] else _DEFAULT_PORTS[scheme]
    if port > 65535:
        return None
    return host if port == _DEFAULT_PORTS[scheme] else f"{host}:{port}"


def _canonical_host(text: str) -> str | None:
    """Return a host in lower-case ASCII, or None where it cannot be one."""
    if text.startswith("["):
        return _canonical_ipv6(text[1:-1])
    host = text.lower()
    if "%" in host or not host.isascii():
        host = _ascii_host(text)
    host = host.rstrip(".")
    return host if len(host) <= _MAX_HOST_CHARACTERS and _ASCII_HOST.fullmatch(host) else None


def _canonical_ipv6(text: str) -> str | None:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return None if address.scope_id else f"[{address.compressed}]"


def _ascii_host(text: str) -> str:
    """Return an internationalised host in Punycode, mapped as browsers do (UTS 46, non-transitional), or an empty one.

    The standard library's codec follows the older IDNA 2003, which makes another host of `straße.de`.
    """
    folded = _folded(urllib.parse.unquote(text, errors="replace"))
    labels = _DOTS.sub(".", folded).split(".")
    if not all(_is_label_character(character) for label in labels for character in label):
        return ""
    return ".".join(label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii") for label in labels)


def _folded(text: str) -> str:
    once = unicodedata.normalize("NFKC", _fold_case(_IGNORED_IN_HOSTS.sub("", text)))
    return unicodedata.normalize("NFKC", _fold_case(once))


def _fold_case(text: str) -> str:
    # Full case folding, but for the letters that are hosts of their own since IDNA 2008.
    return "".join(_UNFOLDED.get(character) or character.casefold() for character in text)


def _is_label_character(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character in "-_"
    return character in _JOINERS or (unicodedata.category(character)[0] in "LMNPS" and character != "\ufffd")


def _canonical_path(text: str) -> str:
    path = _encoded(text.replace("\\", "/")) or "/"
    return _without_dot_segments(path) if "/." in path else path


def _without_dot_segments(path: str) -> str:
    """Resolve `.` and `..` in an absolute path (RFC 3986, section 5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _canonical_query(text: str) -> str:
    pieces = _encoded(text).split("&")
    return "&".join(piece for piece in pieces if piece and not _is_tracking(piece))


def _is_tracking(piece: str) -> bool:
    name = piece.partition("=")[0].lower()
    return name in TRACKING_PARAMETERS or name.startswith("utm_")


def _encoded(text: str) -> str:
    """Percent-encode what must be, decode what need not be (RFC 3986, section 2), hex digits in upper case."""
    return text if _PLAIN.fullmatch(text) else _TO_ENCODE.sub(_encoded_run, text)


def _encoded_run(run: re.Match[str]) -> str:
    if run[1]:
        character = chr(int(run[1], 16))
        return character if character in _UNRESERVED else run[0].upper()
    return "".join(f"%{byte:02X}" for byte in run[0].encode())
