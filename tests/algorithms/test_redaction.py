"""What `redact` finds and keeps, by kind; that its result is stable, and its time linear."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pipelines.algorithms.quality.redaction import KINDS, SPAN_TYPE, redact, redact_texts

EMAIL, IPV4, IPV6, PHONE = "email@example.com", "192.0.2.1", "2001:db8::1", "+1-202-555-0100"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to john.doe@gmail.com.", f"Write to {EMAIL}."),
        ("JOHN.DOE@GMAIL.COM, o'neil+list@mail.bbc.co.uk", f"{EMAIL}, {EMAIL}"),
        ("<john@host.org>", f"<{EMAIL}>"),
        ("mailto:john@host.org?subject=x", f"mailto:{EMAIL}?subject=x"),
        ("(john@host.org)Then", f"({EMAIL})Then"),
        ("john@host.org.Then", f"{EMAIL}.Then"),
        ("jürgen@müller.de", EMAIL),
        ("почта@пример.рф", EMAIL),
        ("john＠host．org", EMAIL),
        ("john [at] host [dot] org", EMAIL),
        ("john(at)host.org", EMAIL),
        ("john[@]host(dot)co(dot)uk!", f"{EMAIL}!"),
        ("john {ät} host {.} de", EMAIL),
        ("john at host dot org", EMAIL),
        ("john AT host DOT org, john at host DOT org", f"{EMAIL}, {EMAIL}"),
        ("John Doe <john at host.org>", f"John Doe <{EMAIL}>"),
        ("?to=john%40host.org&x=1", f"?to={EMAIL}&x=1"),
        ("john%2Bx%40host.org, a%40b@host.org", f"{EMAIL}, {EMAIL}"),
        ("https://john:secret@host.org/", f"https://{EMAIL}/"),
        ("https://john:s!cr$t@host.org/", f"https://{EMAIL}/"),
        ("ssh://john:secret@host.org/", f"ssh://{EMAIL}/"),
        ("@john@social.org", f"@{EMAIL}"),
        ("_john@host.org_ and *john@host.org*", f"_{EMAIL}_ and *{EMAIL}*"),
        ("| john@host.org|b |", f"| {EMAIL}|b |"),
        ("`john@host.org`", f"`{EMAIL}`"),
        ("a@host.org@host.net", f"{EMAIL}@host.net"),
        ("x" * 80 + "@host.org", "x" * 15 + EMAIL),
    ],
)
def test_email_addresses(text: str, expected: str) -> None:
    assert redact(text, KINDS)[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "email@example.com and firstname.lastname@example.org, john@mail.example.net",
        "logo@2x.png, app@1.2.3, user@localhost, root@server.local",
        "git@github.com:user/repository.git",
        "ssh://git@github.com/user/repository.git",
        "@media (max-width: 10px), @john, a @ b, 3 @ $5.00",
        "Look at host.org, and meet at noon (at home).",
        "f(a)b.com [at] the (at) end",
        "@host.org",
        "/%40john, 12345%40N00, x%4052.52, 100%40 off",
    ],
)
def test_what_is_no_email_address_or_an_example_is_kept(text: str) -> None:
    assert redact(text, KINDS) == (text, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from 81.2.69.142.", f"from {IPV4}."),
        ("081.002.069.142", IPV4),
        ("http://81.2.69.142:8080/", f"http://{IPV4}:8080/"),
        ("81.2.69.142-81.2.69.160, 81.2.69.142/32", f"{IPV4}-{IPV4}, {IPV4}/32"),
        ("::ffff:81.2.69.142", f"::ffff:{IPV4}"),
        ("user@81.2.69.142", f"user@{IPV4}"),
        ("at 2a00:1450:4001:81b::200e.", f"at {IPV6}."),
        ("2a00:1450:4001:81b::200e 81.2.69.142", f"{IPV6} {IPV4}"),
        ("[2A00:1450:4001:81B:0:0:0:200E]:80", f"[{IPV6}]:80"),
    ],
)
def test_ip_addresses(text: str, expected: str) -> None:
    assert redact(text, KINDS)[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "Lucee 5.3.6.61, McAfee 12.2.0.79, 2.5.29.37, 7.5.0.101",
        "private 10.20.30.40, 172.16.0.99, 192.168.100.200, 127.0.0.1, 169.254.1.99, 255.255.255.0, 224.0.0.251",
        "examples 192.0.2.99, 198.51.100.99, 203.0.113.99, 2001:db8::99",
        "sections 3.2.1.1, 4.12.9.30; resolvers 1.1.1.1, 8.8.8.8",
        "v81.2.69.142, version 81.2.69.142, Version: 81.2.69.142, release 81.2.69.142, Chrome/81.2.69.142",
        "package-81.2.69.142.tar.gz, 81.2.69.142-beta, 1.81.2.69.142, 81.2.69.142.5, 081.002.69.142, 81.2.69.256",
        "networks 81.2.69.0, 81.2.0.0/16, 2a00:1450::/32",
        "12:30:45, std::abs, a::b, 2a:00:14:50:40:01, Foo::Bar, 2000::",
    ],
)
def test_what_is_no_public_ip_address_is_kept(text: str) -> None:
    assert redact(text, ("email", "ip")) == (text, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Call 202-456-1111 now", f"Call {PHONE} now"),
        ("(202) 456-1111, 202.456.1111, 202 456 1111, (202)456-1111", ", ".join([PHONE] * 4)),
        ("1-800-456-1111 or +1 (202) 456-1111", f"{PHONE} or {PHONE}"),
        ("202-456-1111 x12", f"{PHONE} x12"),
        ("202-456-1111/202-456-1112", f"{PHONE}/{PHONE}"),
        ("+44 20 7946 0018", PHONE),
        ("+44 (0)20 7925 0918", PHONE),
        ("+49 30 901820-0", PHONE),
        ("\\+49 30 901820", f"\\{PHONE}"),
        ("tel:+493090182012", f"tel:{PHONE}"),
        ("020 7925 0918", PHONE),
        ("Phone: 2024561111", f"Phone: {PHONE}"),
        ("Tel. 030 / 2325 786 -122, Fax: 0221/92 59", f"Tel. {PHONE}, Fax: {PHONE}"),
        ("Fon 0711-28077-500", f"Fon {PHONE}"),
        ("T 030/227-53218", f"T {PHONE}"),
        ("Paris, 01 45 84 83 75", f"Paris, {PHONE}"),
        ("(07) 4000 8532", PHONE),
        ("1-888-888-4532 (8am)", f"{PHONE} (8am)"),
        ("+49 6123 9238-253Allgemein", f"{PHONE}Allgemein"),
        ("0043 316 821636", PHONE),
        ("| 202-456-1111 |", f"| {PHONE} |"),
    ],
)
def test_phone_numbers(text: str, expected: str) -> None:
    assert redact(text, ("phone",))[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "fiction +1-202-555-0100, (212) 555-0199",
        "id 2024561111, order 202-456-11112, 1511890000",
        "2017-11-28 10:00, 28.11.2017 10:00, 11/28/2017 202",
        "ISBN 978-3-16-148410-0, ISBN 0-306-40615-2, 1 000 000 000, 1,202,456,111",
        "pp. 211-227 (2003), 3.14159265358979, 2024561111.5",
        "https://host.org/202-456-1111/, item=202-456-1111, $202 456 1111, a202-456-1111",
        "100-200-3000, 200-300-4000, 123-456-7890",
        "+0.14576215 +1.2345678 -12.3456789, 1e+12345678",
        "+12, +1 2 3, (1) (2) (3) (4) (5) (6) (7)",
        "in 600/800/1000 ml, `0101 0100`, -f 1234567.888, pp. 094-0011, P. 2021-05-05 08:31",
        "open 08.00 - 12.00, 09.00-18.30, Konto 103 79 00, DE68 1002 0500 0001 0379 00",
        "IPs 202.456.111.1, 081.002.069.142, Tel. 081.002.069.142 and 12 34 56 78 90 12 34 56 78 90 12",
    ],
)
def test_what_is_no_phone_number_is_kept(text: str) -> None:
    assert redact(text, ("phone",)) == (text, [])


def test_spans_are_those_of_the_placeholders_in_the_new_text() -> None:
    text = "𝔘 202-456-1111, john@host.org; 81.2.69.142"
    redacted, spans = redact(text, KINDS)
    assert [(span.kind, redacted[span.start : span.end]) for span in spans] == [
        ("phone", PHONE), ("email", EMAIL), ("ip", IPV4),
    ]  # fmt: skip


def test_markdown_stays_valid() -> None:
    text = """\
# Ask john@host.org

- 202-456-1111 or [john@host.org](https://host.org/?to=john@host.org)
- \\+49 30 901820, *john@host.org*, _john@host.org_, **81.2.69.142**, `john@host.org`

1. (202) 456-1111
2. \\<john at host.org>, <john@host.org>

| who | where |
|---|---|
| john@host.org|202-456-1111 |
|81.2.69.142|\\_john [at] host.org |

> 202-456-1111. Then
202-456-1111

    202-456-1111

```python
send("john@host.org")
```
"""
    redacted, spans = redact(text, KINDS)
    assert len(spans) == 20
    assert "john" not in redacted
    shapes = [
        [(token.type, token.level, [child.type for child in token.children or ()]) for token in parse(source)]
        for source in (text, redacted)
    ]
    assert shapes[0] == shapes[1]


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def test_only_the_given_kinds_are_replaced() -> None:
    text = "202-456-1111, john@host.org, 81.2.69.142"
    assert redact(text, ()) == (text, [])
    assert redact(text, ("ip",))[0] == f"202-456-1111, john@host.org, {IPV4}"
    # Digits of an address are no phone number.
    assert redact("202-456-1111@host.org", KINDS) == (EMAIL, [("email", 0, 17)])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_columns_keep_their_type_and_nulls(kind: pa.DataType) -> None:
    texts, spans = redact_texts(pa.array(["a@host.org", None, "x"], kind), KINDS)
    assert texts.type == kind
    assert texts.to_pylist() == [EMAIL, None, "x"]
    assert spans.type == SPAN_TYPE
    assert spans.to_pylist() == [[{"kind": "email", "start": 0, "end": 17}], None, []]


_PARTS = """
    john @ %40 host.org . - _ + ( ) [ ] / : x 0 1 5 20 202 456 1111 555 0100 +1 +44 020 7925 0918 81.2.69.142 2a00: ::1
    email@example.com example.com 192.0.2.1 2001:db8::1 +1-202-555-0100 at dot AT DOT [at] tel: \0 é 081.002.069.142
""".split()


@settings(max_examples=200, deadline=None)
@example("0100-81.2.69.142")
@example("https://john:secret%40host.org:x@host.org")
@given(st.lists(st.sampled_from([*_PARTS, " ", "\n"]), max_size=14).map("".join))
def test_redacting_again_changes_nothing(text: str) -> None:
    redacted, spans = redact(text, KINDS)
    assert redact(redacted, KINDS) == (redacted, [])
    position, kept = 0, ""
    for span in spans:
        kept += redacted[position : span.start]
        position = span.end
        assert redacted[span.start : span.end] in (EMAIL, IPV4, IPV6, PHONE)
    # All other text is there, in order.
    rest = iter(text)
    assert all(character in rest for character in kept + redacted[position:])


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "@",
        "a@",
        "a@a",
        "%40",
        "a%40a.",
        "//a:",
        " AT ",
        "a@b.",
        "1",
        "1.",
        "1 ",
        "202-456-",
        "+1",
        "(",
        "a:",
        "2a00:",
        ":",
        "[at]",
        " at ",
        " dot a",
        ".",
    ],
)
def test_the_time_is_linear(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    start = time.process_time()
    redact(text, KINDS)
    assert time.process_time() - start < 2


def test_numbers_of_other_countries_with_the_digits_of_fictional_ones_are_replaced() -> None:
    text, spans = redact("Tel. +49 30 55501234, not +1 212 555 0142", KINDS)
    assert text == "Tel. +1-202-555-0100, not +1 212 555 0142"
    assert len(spans) == 1
