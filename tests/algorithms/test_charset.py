from __future__ import annotations

import codecs
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.algorithms.web import charset
from pipelines.algorithms.web.charset import (
    _LABELS,
    codec_of_label,
    decode_page,
    header_charset,
    meta_charset,
)

GREEK = "Ένα κείμενο στα ελληνικά, αρκετά μεγάλο ώστε να αναγνωριστεί σωστά από τον ανιχνευτή. "


def test_every_codec_exists_and_labels_are_unique():
    for codec, labels in _LABELS.items():
        codecs.lookup(codec)
        for label in labels.split():
            assert codec_of_label(label) == codec
    assert sum(len(labels.split()) for labels in _LABELS.values()) == len(
        {label for labels in _LABELS.values() for label in labels.split()}
    )


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("ISO-8859-1", "cp1252"),
        (" latin1 ", "cp1252"),
        ("us-ascii", "cp1252"),
        ("GB2312", "gb18030"),
        ("Shift_JIS", "cp932"),
        ("euc-kr", "cp949"),
        ("iso-8859-9", "cp1254"),
        ("no-such-charset", None),
        ("rot13", None),
        ("unicode_escape", None),
        ("", None),
    ],
)
def test_labels_mean_what_browsers_take_them_for(label, codec):
    assert codec_of_label(label) == codec


@pytest.mark.parametrize(
    ("content_type", "label"),
    [
        ("text/html; charset=utf-8", "utf-8"),
        ('text/html;charset="ISO-8859-1"; x=y', "ISO-8859-1"),
        ("text/html; Charset = 'koi8-r'", "koi8-r"),
        ("text/html", None),
        (None, None),
    ],
)
def test_the_charset_of_a_content_type(content_type, label):
    assert header_charset(content_type) == label


@pytest.mark.parametrize(
    ("head", "label"),
    [
        (b"<html><meta charset=koi8-r>", "koi8-r"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "windows-1251"),
        (b'<?xml version="1.0" encoding="iso-8859-2"?><html>', "iso-8859-2"),
        (b"<!-- <meta charset=big5> --><meta charset='gbk'/>", "gbk"),
        (b"<p>the charset=utf-8 of which we speak</p>", None),
        (b" " * 5000 + b"<meta charset=koi8-r>", None),
    ],
)
def test_the_charset_of_a_meta_element(head, label):
    assert meta_charset(head) == label


def test_byte_order_mark_precedes_header_precedes_meta():
    page = "<meta charset=windows-1251><p>naïve</p>"
    marked = decode_page(codecs.BOM_UTF16_LE + page.encode("utf-16-le"), "text/html; charset=koi8-r")
    assert marked is not None
    assert (marked.text, marked.codec, marked.source) == (page, "utf-16-le", "bom")
    russian = "<meta charset=windows-1251><p>Привет, мир</p>"
    by_header = decode_page(russian.encode("koi8-r"), "text/html; charset=koi8-r")
    assert by_header is not None
    assert (by_header.text, by_header.source) == (russian, "header")
    by_meta = decode_page(russian.encode("cp1251"), "text/html")
    assert by_meta is not None
    assert (by_meta.text, by_meta.source) == (russian, "meta")


def test_latin_1_means_windows_1252():
    decoded = decode_page(b"<p>\x93quoted\x94 \x96 \x80 5</p>", "text/html; charset=iso-8859-1")
    assert decoded is not None
    assert decoded.text == "<p>\u201cquoted\u201d \u2013 \u20ac 5</p>"


def test_meta_overrides_an_impossible_header():
    page = "<meta charset=windows-1252><p>" + "crème brûlée à la carte " * 20 + "</p>"
    decoded = decode_page(page.encode("cp1252"), "text/html; charset=utf-8")
    assert decoded is not None
    assert (decoded.text, decoded.source) == (page, "meta")


def test_a_declared_encoding_tolerates_damage_and_truncation():
    page = ("<p>" + GREEK * 5 + "</p>").encode()
    decoded = decode_page(page[:40] + b"\xff" + page[40:] + "é".encode()[:1], "text/html; charset=utf-8")
    assert decoded is not None
    assert decoded.source == "header"
    assert decoded.text.count("\ufffd") <= 2
    assert decoded.text.endswith("</p>")


def test_undeclared_text_is_utf_8_or_detected():
    for codec in ("utf-8", "iso8859-7"):
        decoded = decode_page((GREEK * 4).encode(codec, "replace"))
        assert decoded is not None
        assert decoded.source == "detector"
        assert "κείμενο στα ελληνικά" in decoded.text


def test_an_unknown_label_is_ignored():
    decoded = decode_page("<p>naïve</p>".encode(), "text/html; charset=none")
    assert decoded is not None
    assert decoded.text == "<p>naïve</p>"


@pytest.mark.parametrize("content_type", [None, "text/html; charset=utf-8", "text/html; charset=iso-8859-1"])
def test_binary_data_is_not_text(content_type):
    noise = bytes((i * 197 + (i >> 3) * 31) % 256 for i in range(20_000))
    assert decode_page(noise, content_type) is None


_VALID_IN_XML = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")


@given(st.text(alphabet=_VALID_IN_XML))
def test_utf_8_round_trips(text):
    decoded = decode_page(text.encode(), "text/html; charset=utf-8")
    assert decoded is not None
    assert decoded.text == text.removeprefix("\ufeff")


def test_replacement_characters_that_are_written_are_not_damage():
    page = "<p>\ufffd" * 40
    for codec in ("utf-8", "utf-16-le", "utf-16-be"):
        assert decode_page(page.encode(codec)) == charset.Decoded(page.encode(), codec, "detector")


def decode_by_definition(data, content_type=None):
    """Decode a page with one pass per rule over its characters, which takes 5 times as long."""

    def decode(data, codec):
        text = codecs.getincrementaldecoder(codec)("replace").decode(data)
        written = data.count("\ufffd".encode()) if codec == "utf-8" else 0
        failed = text.count("\ufffd") - written
        return text.encode(), failed / sum(character > "\x7f" for character in text) if failed else 0.0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(charset, "_decode", decode)
        decoded = charset._by_mark(data) or charset._by_signature(data)
        decoded = decoded or charset._by_declaration(data, content_type) or charset._by_detection(data)
    if decoded is None or len(re.findall("[\x00-\x08\x0b\x0e-\x1f]", decoded.text)) > 0.01 * len(decoded.text):
        return None
    text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", " ", decoded.text)
    return charset.Decoded(text.encode(), decoded.codec, decoded.source)


MISLABELLED = [
    (text.encode(written), f"text/html; charset={label}")
    for text, written in (
        ("<p>これは日本語の文章です。" * 40, "cp932"),
        ("<p>这是一个中文网页的正文。" * 40, "gb18030"),
        ("<p>Съешь же ещё этих мягких булок" * 40, "cp1251"),
        ("<p>crème brûlée à la carte" * 40, "cp1252"),
        ("<p>crème \x0bbrûlée \x0c à la \ufffe\uffff\ufffd carte" * 40, "utf-8"),
        ("<p>crème brûlée".encode().decode("cp1252") * 40, "utf-8"),
        ("<p>half of it" * 40, "utf-16"),
    )
    for label in ("utf-8", "shift_jis", "gb2312", "windows-1251", "iso-8859-1", "utf-16", "none")
]


@pytest.mark.parametrize(("data", "content_type"), MISLABELLED)
def test_decoding_is_as_defined_for_mislabelled_pages(data, content_type):
    for page in (data, data[:101], b"\x00" + data, data + bytes(30), b"\x0c" * len(data) + data):
        assert decode_page(page, content_type) == decode_by_definition(page, content_type)


@given(
    st.binary(max_size=300), st.sampled_from(["", "utf-8", "gbk", "big5", "euc-jp", "iso-2022-jp", "utf-16", "koi8-r"])
)
def test_decoding_is_as_defined_for_any_bytes(data, label):
    assert decode_page(data, f"text/html; charset={label}") == decode_by_definition(data, f"text/html; charset={label}")


def test_decoding_is_as_defined_for_real_pages(shared_data):
    paths = sorted((shared_data / "pages").glob("*/html/*.html.gz"))[::40]
    assert len(paths) > 30
    for path in paths:
        data = gzip.decompress(path.read_bytes())
        for content_type in (None, "text/html; charset=iso-8859-1"):
            assert decode_page(data, content_type) == decode_by_definition(data, content_type), path


# Texts of our own, as pages of each language were often encoded.
SAMPLES = {
    "今朝は早く起きて、川沿いの道を歩きました。駅前のパン屋で"
    "温かいコーヒーを買い、公園のベンチで飲みました。": "cp932 euc-jp iso2022-jp",
    "今天早上我很早就起床，沿着河边的小路散步。我在车站前的面包店买了热咖啡，坐在公园的长椅上喝。": "gb18030",
    "今天早上我很早就起床，沿著河邊的小路散步。空氣很冷，我在車站前的麵包店買了熱咖啡和三明治。": "big5",
    "오늘 아침에는 일찍 일어나 강가의 길을 걸었습니다. 역 앞 빵집에서 따뜻한 커피를 사서 공원에서 마셨습니다.": "cp949",
    "Сегодня утром я встал рано и пошёл гулять вдоль реки. В булочной у вокзала я купил горячий кофе.": "cp1251 koi8-r",
}
WRITTEN = [
    (text, codec)
    for text, codecs_of_text in SAMPLES.items()
    for codec in (*codecs_of_text.split(), "utf-8", "utf-16-le", "utf-16-be")
]


@pytest.mark.parametrize("label", ["", "utf-8", "iso-8859-1", "us-ascii"])
@pytest.mark.parametrize(("text", "codec"), WRITTEN)
def test_pages_without_or_with_a_wrong_label_are_decoded(text, codec, label):
    script = "<script>" + "var menu = document.getElementById('menu');" * 2000 + "</script>"
    page = f"<html><head><title>x</title></head><body><p class='text'>{text}</p>{script}</body></html>"
    for content_type, meta in ((f"text/html; charset={label}", ""), ("text/html", f"<meta charset='{label}'>")):
        written = page.replace("<title>", meta + "<title>")
        decoded = decode_page(written.encode(codec), content_type)
        assert decoded is not None
        assert decoded.text == written


@pytest.mark.parametrize(("written", "label"), [("koi8-r", "windows-1251"), ("cp1251", "koi8-r"), ("utf-8", "big5")])
def test_a_declared_charset_whose_text_is_not_plausible_is_ignored(written, label):
    text = f"<p>{list(SAMPLES)[-1]}</p>"
    decoded = decode_page(text.encode(written), f"text/html; charset={label}")
    assert decoded is not None
    assert decoded.text == text


@pytest.mark.parametrize(
    "text",
    [
        "<p>Größe: «énorme»\xa0! \xa0\xa0\xa0\xa0 ————— ••• • “naïve”… Ça va",
        "<h1>ПРИВЕТ</h1><p>Заглавные буквы редки",
    ],
)
def test_a_plausible_declared_charset_is_used(text):
    codec, label = ("cp1252", "iso-8859-1") if "ö" in text else ("cp1251", "windows-1251")
    decoded = decode_page(text.encode(codec), f"text/html; charset={label}")
    assert decoded is not None
    assert (decoded.text, decoded.codec, decoded.source) == (text, codec, "header")


def test_real_pages_in_other_encodings_under_wrong_labels(shared_data):
    codecs_of_page = {
        "6ef38d39d1a4": "cp1251 koi8-r",  # Russian
        "7a08943aa464": "cp932 euc-jp",
        "b32518a40d61": "gb18030",
        "cb5faf192af0": "gb18030",
        "d5ec09743db5": "gb18030",
        "f3689e003b51": "gb18030",
    }
    for name, names in codecs_of_page.items():
        path = shared_data / "pages" / "trafilatura-eval" / "html" / f"{name}.html.gz"
        page = gzip.decompress(path.read_bytes()).decode("utf-8-sig")
        for codec in (*names.split(), "utf-16-le", "utf-8"):
            data = page.encode(codec, "xmlcharrefreplace")
            for label in ("utf-8", "iso-8859-1", "none"):
                decoded = decode_page(data, f"text/html; charset={label}")
                assert decoded is not None
                assert decoded.text == data.decode(codec), (name, codec, label)


def test_bytes_for_which_a_codec_raises_another_error_are_decoded_by_another_one() -> None:
    decoded = decode_page(b"<meta charset=gb2312>\x1b$}}bb(~\x0f")
    assert decoded is None or decoded.codec != "iso2022-jp"


@pytest.mark.parametrize("control", [byte for byte in range(32) if byte not in b"\t\n\r"])
def test_a_single_control_becomes_a_space(control: int) -> None:
    text = b"<p>Some text around it, long enough to be a text. " * 4
    decoded = decode_page(text + bytes([control]) + text)
    assert decoded is not None
    assert decoded.utf8 == text + b" " + text
