"""Wishes of owners, in the forms of specifications and of documentation, and the signals that they are."""

from __future__ import annotations

import json
import time

import pytest
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.web.metadata import read_declared
from pipelines.algorithms.web.signals import meta_elements, page_signals, parse_site
from pipelines.errors import UsageError
from pipelines.records.wishes import read_honor

AGENTS = ("*", "GPTBot", "CCBot", "Google-Extended", "Applebot-Extended")

# Google's, Bing's and DeviantArt's documentation, MDN, TDMRep (W3C community group) and AIPREF (IETF drafts).
HEADERS = [
    ("X-Robots-Tag: noindex", ["noindex:header"]),
    ("x-robots-tag: NOINDEX, NOFOLLOW", ["noindex:header"]),
    ("X-Robots-Tag: none", ["noarchive:header", "noindex:header"]),
    ("X-Robots-Tag: noai, noimageai", ["noai:header", "noimageai:header"]),
    ("X-Robots-Tag: noarchive, nosnippet", ["noarchive:header"]),
    ("X-Robots-Tag: index, follow", []),
    ("X-Robots-Tag: all", []),
    ("X-Robots-Tag: nofollow", []),
    ("X-Robots-Tag: noindex noarchive", ["noarchive:header", "noindex:header"]),
    ("X-Robots-Tag: max-snippet:20, noindex", ["noindex:header"]),
    ("X-Robots-Tag: max-image-preview:large, max-video-preview:-1, max-snippet: -1", []),
    ("X-Robots-Tag: unavailable_after: 25 Jun 2010 15:00:00 PST", []),
    ("X-Robots-Tag: unavailable_after: 25 Jun 2010 15:00:00 PST, noarchive", ["noarchive:header"]),
    ("X-Robots-Tag: googlebot: noindex", []),
    ("X-Robots-Tag: googlebot: nofollow\nX-Robots-Tag: otherbot: noindex, nofollow", []),
    ("X-Robots-Tag: BadBot: noindex, nofollow, googlebot: nofollow", []),
    ("X-Robots-Tag: gptbot: noindex", ["noindex:header:GPTBot"]),
    ("X-Robots-Tag: otherbot: noindex, GPTBot: noai, noarchive", ["noai:header:GPTBot", "noarchive:header:GPTBot"]),
    ("X-Robots-Tag: noindex, CCBot: noarchive", ["noarchive:header:CCBot", "noindex:header"]),
    ("X-Robots-Tag: noai\nX-Robots-Tag: CCBot: noindex", ["noai:header", "noindex:header:CCBot"]),
    ("X-Robots-Tag: notranslate, noimageindex", []),
    ("X-Robots-Tag:", []),
    ("tdm-reservation: 1", ["tdm-reservation:header"]),
    ("TDM-Reservation:  1 ", ["tdm-reservation:header"]),
    ("tdm-reservation: 1\ntdm-policy: https://provider.com/policies/policy.json", ["tdm-reservation:header"]),
    ("tdm-reservation: 0", []),
    ("tdm-reservation: 2", []),  # other values are errors
    ("Content-Usage: train-ai=n", ["content-usage:train-ai=n"]),
    ("content-usage: train-ai=n, search=y", ["content-usage:train-ai=n"]),
    ("Content-Usage: train-ai=y, search=n", ["content-usage:search=n"]),
    ('Content-Usage: train-genai="n";x=1, ai-use=n', ["content-usage:ai-use=n", "content-usage:train-genai=n"]),
    ("Content-Usage: train-ai=n, train-ai=y", []),  # of equal keys, the last one counts (RFC 9651)
    ("Content-Usage: train-ai", []),
    ("Content-Signal: search=yes, ai-train=no", ["content-signal:ai-train=no"]),
    ("Server: noai", []),
]

METAS = [
    ('<meta name="robots" content="noindex">', ["noindex:meta"]),
    ('<META NAME="ROBOTS" CONTENT="NOINDEX, NOFOLLOW">', ["noindex:meta"]),
    ("<meta content='noai,noimageai' name='robots'>", ["noai:meta", "noimageai:meta"]),
    ("<meta name=robots content=noarchive>", ["noarchive:meta"]),
    ('<meta name="robots" content="none"/>', ["noarchive:meta", "noindex:meta"]),
    ('<meta name="robots" content="index, follow, max-snippet:-1, noai"/>', ["noai:meta"]),
    ('<meta name="robots" content="noindex"><meta name="robots" content="noai">', ["noai:meta", "noindex:meta"]),
    ('<meta name="googlebot" content="noindex">', []),
    ('<meta name="GPTBot" content="noindex">', ["noindex:meta:GPTBot"]),
    ('<meta name="CCBot" content="nofollow">', []),
    ('<meta name="ccbot" content="noai, noarchive">', ["noai:meta:CCBot", "noarchive:meta:CCBot"]),
    ('<meta name="description" content="noindex and noai explained">', []),
    ('<meta property="og:title" content="noai">', []),
    ('<meta name="tdm-reservation" content="1">', ["tdm-reservation:meta"]),
    (
        '<meta name="tdm-reservation" content="1" /><meta name="tdm-policy" content="https://provider.com/policy.json">',
        ["tdm-reservation:meta"],
    ),
    ('<meta name="tdm-reservation" content="0">', []),
    ('<meta name="robots" content="no&#97;i">', ["noai:meta"]),
    ('<meta http-equiv="refresh" content="0; url=noindex">', []),
]

# The path is /a/b.html.
ROBOTS = [
    ("User-agent: GPTBot\nDisallow: /", ["robots:GPTBot"]),
    ("User-agent: gptbot\nUser-agent: CCBot\nDisallow: /\n", ["robots:CCBot", "robots:GPTBot"]),
    ("User-agent: *\nDisallow: /", sorted(f"robots:{agent}" for agent in AGENTS)),
    (
        "User-agent: *\nDisallow: /\n\nUser-agent: CCBot\nDisallow:",
        sorted(f"robots:{a}" for a in AGENTS if a != "CCBot"),
    ),
    ("User-agent: GPTBot\nDisallow: /a/\nAllow: /a/b", []),
    ("User-agent: GPTBot\nDisallow: /*.html$", ["robots:GPTBot"]),
    ("User-agent: Google-Extended\nDisallow: /a", ["robots:Google-Extended"]),
    ("User-agent: Applebot\nDisallow: /", ["robots:Applebot-Extended"]),  # the longest name that the agent begins with
    ("User-agent: ChatGPT-User\nDisallow: /", []),
    ("User-Agent: *\nAllow: /\nContent-Usage: train-ai=n", ["content-usage:train-ai=n"]),
    ("User-Agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /a/ train-ai=y", []),
    ("User-Agent: *\nContent-Usage: / train-ai=y\nContent-Usage: /a/*.html train-ai=n", ["content-usage:train-ai=n"]),
    ("User-Agent: ExampleBot\nContent-Usage: / train-ai=n", []),
    ("User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /\n", ["content-signal:ai-train=no"]),
    ("# a comment about GPTBot\nSitemap: https://example.org/map.xml\n", []),
    ("<html>not found</html>", []),
]

TDMREP = [
    ('[{"location": "/", "tdm-reservation": 1}]', ["tdm-reservation:file"]),
    ('[{"location": "/", "tdm-reservation": "1"}]', ["tdm-reservation:file"]),
    (
        '[{"location": "/a/", "tdm-reservation": 1, "tdm-policy": "https://provider.com/p.json"}]',
        ["tdm-reservation:file"],
    ),
    ('[{"location": "/c/", "tdm-reservation": 1}]', []),
    ('[{"location": "/a/*.html", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]', []),  # the first
    ('[{"location": "/*.html$", "tdm-reservation": 1}]', ["tdm-reservation:file"]),
    ('\ufeff[{"location": "/", "tdm-reservation": 1}]', ["tdm-reservation:file"]),
    ('{"location": "/", "tdm-reservation": 1}', []),  # the array is mandatory
    ('["/", 1, null, {"location": 7, "tdm-reservation": 1}, {"tdm-reservation": 1}]', []),
    ("<html>", []),
    ("[" * 100_000, []),
]


def _fields(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (line.partition(":") for line in text.split("\n"))]


def test_there_are_sixty_forms() -> None:
    assert len(HEADERS) + len(METAS) + len(ROBOTS) + len(TDMREP) >= 60


@pytest.mark.parametrize(("text", "signals"), HEADERS)
def test_headers(text: str, signals: list[str]) -> None:
    assert page_signals(_fields(text), (), AGENTS) == signals


@pytest.mark.parametrize(("text", "signals"), METAS)
def test_meta_elements_are_read_alike_with_and_without_a_parser(text: str, signals: list[str]) -> None:
    page = f"<!DOCTYPE html><html><head><meta charset=utf-8>{text}</head><body><p>text</p></body></html>"
    assert page_signals((), meta_elements(page.encode()), AGENTS) == signals
    assert page_signals((), read_declared(LexborHTMLParser(page)).elements, AGENTS) == signals


@pytest.mark.parametrize(("text", "signals"), ROBOTS)
def test_robots_txt(text: str, signals: list[str]) -> None:
    assert sorted(parse_site(text.encode(), b"", AGENTS)("http://example.org/a/b.html")) == signals


@pytest.mark.parametrize(("text", "signals"), TDMREP)
def test_tdmrep_json(text: str, signals: list[str]) -> None:
    assert list(parse_site(b"", text.encode(), AGENTS)("http://example.org/a/b.html")) == signals


def test_of_tdmrep_the_page_supersedes_its_headers_and_these_the_file() -> None:
    one, none = [("tdm-reservation", "1")], [("tdm-reservation", "0")]
    file = ["robots:GPTBot", "tdm-reservation:file"]
    assert page_signals((), (), AGENTS, file) == file
    assert page_signals(none, (), AGENTS, file) == ["robots:GPTBot"]
    assert page_signals(none, one, AGENTS, file) == ["robots:GPTBot", "tdm-reservation:meta"]
    assert page_signals(one, none, AGENTS, file) == ["robots:GPTBot"]
    assert page_signals([("tdm-reservation", "x")], (), AGENTS, file) == file


def test_hostile_files_take_bounded_time() -> None:
    started = time.monotonic()
    rules = [{"location": "/" + "*a" * 50 + str(number), "tdm-reservation": 1} for number in range(5_000)]
    preferences = "".join(f"Content-Usage: /*a*a*a{number} train-ai=n\n" for number in range(10_000))
    agents = "".join(f"User-agent: bot{number}\n" for number in range(10_000))
    site = parse_site(f"{agents}User-agent: *\n{preferences}".encode(), json.dumps(rules).encode(), AGENTS)
    for _ in range(3):
        assert list(site("http://example.org/" + "a" * 2_000)) == []
    assert page_signals([("x-robots-tag", "noai:" * 100_000)], [("robots", "x" * 1_000_000)], AGENTS) == []
    assert list(meta_elements(b"<meta " * 200_000)) == []
    assert time.monotonic() - started < 20  # 1 s at rest


@pytest.mark.parametrize("repeated", ["a", "a=", "a ", "a=n", "a-"])
def test_a_long_preference_takes_linear_time(repeated: str) -> None:
    value, started = (repeated * 500_000)[:500_000], time.monotonic()
    page_signals([("Content-Usage", value)], [], ["*"])
    list(parse_site(f"User-agent: *\nContent-Usage: {value}\n".encode(), b"", ["*"])("http://a.com/x"))
    assert time.monotonic() - started < 5


def test_made_up_preferences_are_bounded_and_hide_no_wish() -> None:
    made_up = ", ".join(f"a{number}=n" for number in range(5_000))
    signals = page_signals([("Content-Usage", f"{'a' * 41}=n, {made_up}"), ("X-Robots-Tag", "noai")], [], ["*"])
    assert len(signals) == 1000
    assert "noai:header" in signals
    assert max(map(len, signals)) < 60


def test_honored_signals_are_named_in_whole_or_up_to_a_colon() -> None:
    honor = read_honor(("noai,noindex:meta", "robots:gptbot"))
    for signal in ("noai:header", "noai:meta:CCBot", "noindex:meta", "noindex:meta:GPTBot", "robots:GPTBot"):
        assert honor.find(["content-usage:train-ai=n", signal]) == (signal.partition(":")[0], signal)
    for signal in ("noimageai:header", "noindex:header", "robots:CCBot", "robots:*", "tdm-reservation:meta"):
        assert honor.find([signal]) is None
    assert honor.robots_agents == ("GPTBot",)
    assert read_honor(("robots:MyBot",)).agents[-1] == "MyBot"
    assert read_honor(("noindex:meta:gptbot",)).find(["noindex:meta:GPTBot"])
    assert read_honor(("noai:meta:MyBot",)).agents[-1] == "MyBot"
    assert {"*", "GPTBot", "CCBot", "meta-externalagent"} <= set(read_honor(()).agents)
    assert read_honor(("ai",)).find(["robots:*"]) is None
    assert read_honor(("ai",)).find(["robots:*", "robots:Bytespider"]) == ("robots", "robots:Bytespider")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("noia", "--honor noia: unknown signal; did you mean noai?"),
        ("noai, tdm_reservation", "--honor tdm_reservation: unknown signal; did you mean tdm-reservation?"),
        ("GPTBot", "--honor GPTBot: unknown signal; known: noai, "),
        ("noindex:metta", "--honor noindex:metta: is not a signal; after noindex: use header, meta, "),
        ("noai:file", "--honor noai:file: is not a signal"),
        ("noai:", "--honor noai:: is not a signal"),
        ("noai:meta:", "--honor noai:meta:: is not a signal"),
        ("tdm-reservation:meta:GPTBot", "after tdm-reservation: use header, meta or file"),
        ("content-usage:train-ai", "after content-usage: use what is refused, such as train-ai=n"),
        ("content-signal:ai-train=yes", "after content-signal: use what is refused"),
    ],
)
def test_unknown_signals_are_refused(value: str, message: str) -> None:
    with pytest.raises(UsageError, match="--honor") as refused:
        read_honor((value,))
    assert message in str(refused.value)


def test_drop_reasons_are_the_kinds_of_signals() -> None:
    honor = read_honor(("tdm-reservation", "content-usage:train-ai=n"))
    assert honor.find(["tdm-reservation:file"]) == ("tdm_reservation", "tdm-reservation:file")
    assert honor.find(["content-usage:search=n", "content-usage:train-ai=n"]) == (
        "content_usage",
        "content-usage:train-ai=n",
    )
