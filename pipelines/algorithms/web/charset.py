"""The media type and the character encoding of a web page.

The encoding is that of the byte-order mark, then of the HTTP header, then of meta, then what a detector guesses.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import re

import numpy as np

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

# The labels of the WHATWG Encoding Standard, by the Python codec that decodes them. Many labels mean a larger
# encoding than their name says (iso-8859-1 is windows-1252, gb2312 is gb18030), because that is how pages use them.
_LABELS = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "cp866": "866 cp866 csibm866 ibm866",
    "iso8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-3": "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso8859-4": "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso8859-5": "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    "iso8859-6": "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e"
    " iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
    "iso8859-7": "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7"
    " iso_8859-7:1987 sun_eu_greek",
    "iso8859-8": "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8"
    " iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical",
    "iso8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "iso8859-16": "iso-8859-16",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "mac-roman": "csmacintosh mac macintosh x-mac-roman",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "cp874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "cp1250": "cp1250 windows-1250 x-cp1250",
    "cp1251": "cp1251 windows-1251 x-cp1251",
    "cp1252": "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591"
    " iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252",
    "cp1253": "cp1253 windows-1253 x-cp1253",
    "cp1254": "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5"
    " windows-1254 x-cp1254",
    "cp1255": "cp1255 windows-1255 x-cp1255",
    "cp1256": "cp1256 windows-1256 x-cp1256",
    "cp1257": "cp1257 windows-1257 x-cp1257",
    "cp1258": "cp1258 windows-1258 x-cp1258",
    "gb18030": "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk gb18030",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc-jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso2022-jp": "csiso2022jp iso-2022-jp",
    "cp932": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "cp949": "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601"
    " windows-949",
    "utf-16-be": "unicodefffe utf-16be",
    "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le",
}
_CODEC_OF = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}

# Types of pages: of HTML, and of text that is kept as it is.
HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
PLAIN_TYPES = frozenset({"text/plain", "text/markdown", "text/x-markdown"})
TEXT_TYPES = HTML_TYPES | PLAIN_TYPES

_PRESCAN_BYTES = 4096
_DETECTOR_BYTES = 1 << 16
_HEADER_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([^\s\"'/>;]+)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([^\"']+)", re.IGNORECASE)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
# Controls, which in UTF-8 are bytes that nothing else contains, and noncharacters: XML forbids them.
_CONTROLS_TO_SPACES = bytes(ord(" ") if byte < 32 and byte not in b"\t\n\r" else byte for byte in range(256))
_NONCHARACTER = re.compile("\ufffe".encode() + b"|" + "\uffff".encode())
_NONCHARACTER_START = "\ufffe".encode()[0]  # few pages have this byte

_SCRIPT = re.compile(rb"<(?:script|style)\b", re.IGNORECASE)
_TAG = re.compile(rb"<[^<>]*>")
_HIGH_BYTES = bytes(range(128, 256))
# In Western text, characters outside ASCII rarely follow each other; spaces and repeated signs do.
_HIGH_RUN = re.compile(rb"([\x80-\x9f\xa1-\xff])(?!\1)([\x80-\x9f\xa1-\xff])(?!\2)[\x80-\x9f\xa1-\xff]+")
_CYRILLIC_CODECS = ("cp1251", "koi8-r", "koi8-u", "iso8859-5", "cp866", "mac-cyrillic")
_CAPITALS, _SMALL = re.compile("[\u0401\u0410-\u042f]"), re.compile("[\u0430-\u044f\u0451]")
_SIGNATURE_BYTES = 1024
# Text in the other encodings is very rare; the detector does not look for them.
_DETECTED = (
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp866 cp874 cp949 cp932 euc_jp gb18030".split()
)
_DETECTED += "big5hkscs koi8_r iso8859_2 iso8859_5 iso8859_7 iso8859_9".split()

# A declared encoding is used if at most this share of the non-ASCII characters cannot be decoded.
_TOLERATED_DAMAGE = 0.1
# With a larger share of control characters, the bytes are binary data in any encoding.
_MAX_CONTROLS = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    """The text of a page in UTF-8, its codec, and the source of the codec: bom, header, meta or detector."""

    utf8: bytes
    codec: str
    source: str

    @property
    def text(self) -> str:
        """The characters, decoded at each access."""
        return self.utf8.decode()


def codec_of_label(label: str) -> str | None:
    """Return the Python codec for an encoding label by the WHATWG Encoding Standard, or None for an unknown one."""
    return _CODEC_OF.get(label.strip().lower())


def media_type(content_type: str | None) -> str:
    """Return the type in a Content-Type header in lower case, empty without one.

    Some servers send the header twice; the two are then joined by a comma.
    """
    return re.split("[;,]", content_type or "", maxsplit=1)[0].strip().lower()


def header_charset(content_type: str | None) -> str | None:
    """Return the charset label of a Content-Type header, or None."""
    match = _HEADER_CHARSET.search(content_type or "")
    return match[1] if match else None


def meta_charset(data: bytes) -> str | None:
    """Return the encoding label that the first 4,096 bytes declare by `<meta>` or `<?xml?>`, or None."""
    head = _COMMENT.sub(b"", data[:_PRESCAN_BYTES])
    match = _META_CHARSET.search(head) or _XML_ENCODING.search(head)
    return match[1].decode("ascii", "replace") if match else None


def decode_page(data: bytes, content_type: str | None = None) -> Decoded | None:
    """Decode the bytes of a page, or return None if they are no text.

    The byte-order mark decides, or what only UTF-16 and ISO-2022-JP contain; else UTF-8 if all bytes are valid, which
    other text hardly is; else the HTTP header's charset, then that of `<meta>`, where it is known, at most a tenth of
    the non-ASCII characters fail to decode, and the text is plausible; else UTF-8 again, then the detector's guess.
    Bytes that a codec cannot decode become U+FFFD; a character cut off at the end is left out. Characters that XML
    forbids become spaces.
    """
    decoded = _by_mark(data) or _by_signature(data) or _by_declaration(data, content_type) or _by_detection(data)
    if decoded is None:
        return None
    utf8 = decoded.utf8
    values = np.frombuffer(utf8, np.uint8)  # bytes.translate takes twice as long
    # Few pages have other controls than \t, \n and \r; to look for them takes half as long as to count them.
    has_controls = values.min(initial=9) < 9 or (values - np.uint8(14)).min(initial=18) < 18
    if has_controls or b"\v" in utf8 or b"\f" in utf8:
        controls = np.count_nonzero(values < 32) - sum(np.count_nonzero(values == sign) for sign in b"\t\n\r")
        if controls - utf8.count(b"\f") > _MAX_CONTROLS * len(decoded.text):
            return None
        utf8 = utf8.translate(_CONTROLS_TO_SPACES)
    if _NONCHARACTER_START in utf8:
        utf8 = _NONCHARACTER.sub(b" ", utf8)
    return dataclasses.replace(decoded, utf8=utf8)


def _by_mark(data: bytes) -> Decoded | None:
    for mark, codec in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return Decoded(_decode(data[len(mark) :], codec)[0], codec, "bom")
    return None


def _by_declaration(data: bytes, content_type: str | None) -> Decoded | None:
    """Decode by a declared encoding if that is plausible, else as UTF-8."""
    header, meta = codec_of_label(header_charset(content_type) or ""), codec_of_label(meta_charset(data) or "")
    if meta is not None and meta.startswith("utf-16"):
        meta = "utf-8"  # the declaration was read as ASCII, so the page cannot be UTF-16
    utf8 = _decode(data, "utf-8")
    is_utf8 = not data.isascii() and utf8[1] == 0
    for codec, source in ((header, "header"), (meta, "meta")):
        if codec is None or (is_utf8 and codec != "utf-8"):
            continue
        decoded, damage = utf8 if codec == "utf-8" else _decode(data, codec)
        if damage <= _TOLERATED_DAMAGE and _is_plausible(decoded, data, codec):
            return Decoded(decoded, codec, source)
    return Decoded(utf8[0], "utf-8", "detector") if utf8[1] <= _TOLERATED_DAMAGE else None


def _by_signature(data: bytes) -> Decoded | None:
    """Decode UTF-16 without a byte-order mark, by the zero bytes of its markup, and ISO-2022-JP, by its escapes."""
    start = data[:_SIGNATURE_BYTES]
    zeros = {"utf-16-be": start[::2].count(0), "utf-16-le": start[1::2].count(0)}
    codec = max(zeros, key=zeros.__getitem__)
    if zeros[codec] * 4 < len(start) or min(zeros.values()) * 8 > len(start):
        if not data.isascii() or b"\x1b$" not in data:
            return None
        codec = "iso2022-jp"
    utf8, damage = _decode(data, codec)
    return Decoded(utf8, codec, "detector") if utf8 and damage <= _TOLERATED_DAMAGE else None


def _is_plausible(utf8: bytes, data: bytes, codec: str) -> bool:
    """Return whether a text does not look like one in another encoding: many servers declare iso-8859-1 by default."""
    if codec == "cp1252":
        in_runs = sum(match.end() - match.start() for match in _HIGH_RUN.finditer(data))
        return 2 * in_runs <= len(data) - len(data.translate(None, _HIGH_BYTES))
    if codec in _CYRILLIC_CODECS:  # one read as another has capitals for small letters
        text = utf8.decode()
        return len(_CAPITALS.findall(text)) <= len(_SMALL.findall(text))
    return True


def _by_detection(data: bytes) -> Decoded | None:
    import charset_normalizer

    first, *others = _SCRIPT.split(data)
    shown = _TAG.sub(b" ", first + b" ".join(part.partition(b"</")[2] for part in others))
    guess = charset_normalizer.from_bytes(shown[:_DETECTOR_BYTES], cp_isolation=_DETECTED).best()
    return None if guess is None else Decoded(_decode(data, guess.encoding)[0], guess.encoding, "detector")


def _decode(data: bytes, codec: str) -> tuple[bytes, float]:
    """Return a text in UTF-8, and the share of its non-ASCII characters that could not be decoded."""
    # Not final: pages are cut at a size limit, also in the middle of a character.
    if codec == "utf-8":
        with contextlib.suppress(UnicodeError):
            return data[: codecs.utf_8_decode(data, "strict", False)[1]], 0.0
    decoder = codecs.getincrementaldecoder(codec)
    with contextlib.suppress(UnicodeError):
        return _encode(decoder().decode(data)), 0.0
    try:
        text = decoder("replace").decode(data)
    except UnicodeError:  # the codecs of ISO 2022 raise it for some bytes whatever is to be done with errors
        return b"", 1.0
    written = data.count("\ufffd".encode()) if codec == "utf-8" else 0
    return _encode(text), (text.count("\ufffd") - written) / (len(text) - len(text.encode("ascii", "ignore")))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a lone surrogate
