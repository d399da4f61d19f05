"""robots.txt by RFC 9309, from real servers on loopback."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import time
from pathlib import Path

import pytest
from fetch_run import read_records, run_fetch
from local_web import HTML, Answer, LocalWeb
from protego import Protego

from pipelines.stages.fetch import crawl, robots
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.robots import parse_rules, product_token

_TEXT = b"<p>some text</p>"
_PLAIN = {"Content-Type": "text/plain"}


def _outcomes(folder: Path, robots_txt: object, paths: list[str], **config: object) -> list[str]:
    """Return the outcomes of pages on a host with this robots.txt."""
    return _outcomes_of_hosts(folder, [robots_txt], paths, **config)[0]


def _outcomes_of_hosts(folder: Path, hosts: list[object], paths: list[str], **config: object) -> list[list[str]]:
    """Return the outcomes of the same pages on hosts with each robots.txt; only allowed pages may be requested."""
    with contextlib.ExitStack() as stack:
        # One more host that allows everything keeps the run from being all drops.
        sites = [dict.fromkeys(paths, _TEXT) | {"/robots.txt": robots_txt} for robots_txt in (*hosts, Answer(b"", 404))]
        webs = [stack.enter_context(LocalWeb(site)) for site in sites]
        outcomes = run_fetch(folder, [web.url(path) for web in webs for path in paths], **config).outcomes
        for web in webs:
            assert web.paths() == [path for path in paths if outcomes[web.url(path)] == "ok"]
        return [[outcomes[web.url(path)] for path in paths] for web in webs[:-1]]


_RULES = [
    (b"", [True, True, True, True]),
    (b"User-agent: *\nDisallow:\n", [True, True, True, True]),
    (b"User-agent: *\nDisallow: /\n", [False, False, False, False]),
    (b"User-agent: *\nDisallow: /a/\n", [False, False, True, True]),
    # The longest match decides, whatever the order.
    (b"User-agent: *\nDisallow: /a/\nAllow: /a/b\n", [True, False, True, True]),
    (b"User-agent: *\nAllow: /a/b\nDisallow: /a/\n", [True, False, True, True]),
    # Equal length: allow wins.
    (b"User-agent: *\nDisallow: /c\nAllow: /c\n", [True, True, True, True]),
    # Wildcards and the end of the URL.
    (b"User-agent: *\nDisallow: /*.html$\n", [True, False, True, True]),
    (b"User-agent: *\nDisallow: /*?q=\n", [True, True, True, False]),
    # The group for our product replaces the general one; groups of the same product are combined.
    (b"User-agent: *\nDisallow: /\n\nUser-agent: WebText\nDisallow: /c\n", [True, True, False, False]),
    (b"User-agent: webtext\nDisallow: /c\n\nUser-agent: webtext\nDisallow: /a\n", [False, False, False, False]),
    (b"User-agent: otherbot\nDisallow: /\n", [True, True, True, True]),
    (b"\xef\xbb\xbfUser-agent: *\r\nDisallow: /c # comment\r\n", [True, True, False, False]),
    (b"<html>not a robots.txt at all</html>", [True, True, True, True]),
]


def test_rules(tmp_path: Path) -> None:
    paths = ["/a/b", "/a/x.html", "/c", "/c?q=1"]
    outcomes_of_hosts = _outcomes_of_hosts(tmp_path, [Answer(rules, 200, _PLAIN) for rules, _ in _RULES], paths)
    for (rules, allowed), outcomes in zip(_RULES, outcomes_of_hosts, strict=True):
        assert outcomes == ["ok" if is_allowed else "robots" for is_allowed in allowed], rules


def test_statuses_of_robots_txt(tmp_path: Path) -> None:
    statuses = dict.fromkeys((304, 401, 403, 404, 410, 451), "ok")
    statuses |= dict.fromkeys((429, 500, 501, 503), "robots_unreachable")
    outcomes_of_hosts = _outcomes_of_hosts(tmp_path, [Answer(b"", status) for status in statuses], ["/a", "/b"])
    assert dict(zip(statuses, (outcomes[0] for outcomes in outcomes_of_hosts), strict=True)) == statuses
    assert all(first == second for first, second in outcomes_of_hosts)


def test_a_compressed_robots_txt_is_read(tmp_path: Path) -> None:
    headers = {**_PLAIN, "Content-Encoding": "gzip"}
    body = gzip.compress(b"User-agent: *\nDisallow: /b\n")
    assert _outcomes(tmp_path, Answer(body, 200, headers), ["/a", "/b"]) == ["ok", "robots"]


def test_only_the_first_500_kib_of_robots_txt_count(tmp_path: Path) -> None:
    filler = b"# padding\n" * (robots.MAX_BYTES // 10)
    early = b"User-agent: *\nDisallow: /a\n" + filler + b"Disallow: /b\n"
    assert len(early) > robots.MAX_BYTES
    assert _outcomes(tmp_path, Answer(early, 200, _PLAIN), ["/a", "/b"]) == ["robots", "ok"]


def test_a_robots_txt_that_fails_once_is_retried(tmp_path: Path) -> None:
    answers = [Answer(b"", 503), Answer(b"User-agent: *\nDisallow: /b\n", 200, _PLAIN)]
    assert _outcomes(tmp_path, answers, ["/a", "/b"], retries=1, max_wait=0.05) == ["ok", "robots"]


def test_redirects_of_robots_txt_to_other_hosts_are_followed(tmp_path: Path) -> None:
    with LocalWeb({"/rules": Answer(b"User-agent: *\nDisallow: /b\n", 200, _PLAIN)}) as other:
        to_other = Answer(b"", 301, {"Location": other.url("/rules")})
        assert _outcomes(tmp_path, to_other, ["/a", "/b"]) == ["ok", "robots"]


def test_hosts_whose_robots_txt_redirect_to_each_other_do_not_deadlock(tmp_path: Path) -> None:
    with LocalWeb({"/a": _TEXT}) as one, LocalWeb({"/a": _TEXT}) as two:
        one.pages["/robots.txt"] = Answer(b"", 302, {"Location": two.url("/robots.txt")})
        two.pages["/robots.txt"] = Answer(b"", 302, {"Location": one.url("/robots.txt")})
        assert set(run_fetch(tmp_path, [one.url("/a"), two.url("/a")]).outcomes.values()) == {"ok"}


def test_every_hop_of_a_redirect_is_checked(tmp_path: Path) -> None:
    forbidding = {"/robots.txt": Answer(b"User-agent: *\nDisallow: /private\n", 200, _PLAIN), "/private": _TEXT}
    with LocalWeb({**forbidding, "/open": _TEXT}) as target, LocalWeb() as source:
        source.pages["/1"] = Answer(b"", 302, {"Location": target.url("/private")})
        source.pages["/2"] = Answer(b"", 302, {"Location": target.url("/open")})
        fetched = run_fetch(tmp_path, [source.url("/1"), source.url("/2")])
        assert list(fetched.outcomes.values()) == ["robots", "ok"]
        assert fetched.row(source.url("/1"))["final_url"] == target.url("/private")
        assert target.paths() == ["/open"]


def test_robots_txt_is_requested_once_per_host_and_stored(tmp_path: Path) -> None:
    rules = b"User-agent: *\nDisallow: /x\n"
    pages = {f"/{number}": _TEXT for number in range(20)}
    with LocalWeb({**pages, "/robots.txt": Answer(rules, 200, _PLAIN)}) as web:
        run_fetch(tmp_path, [web.url(path) for path in pages])
        assert [request.url for request in web.requests].count("/robots.txt") == 1
        assert web.requests[0].url == "/robots.txt"
        stored = read_records(tmp_path / "fetch" / "pages-00000.warc.gz")
        assert ("response", web.url("/robots.txt"), rules) in stored


def test_crawl_delay_is_limited_by_max_wait(tmp_path: Path) -> None:
    def gaps(folder: str, **config: object) -> list[float]:
        rules = Answer(b"User-agent: *\nCrawl-delay: 1.5\n", 200, _PLAIN)
        with LocalWeb({"/1": _TEXT, "/2": _TEXT, "/robots.txt": rules}) as web:
            (tmp_path / folder).mkdir()
            run_fetch(tmp_path / folder, [web.url("/1"), web.url("/2")], **config)
            # On a busy machine, the server notes late that an answer has ended.
            return [after.started - before.started for before, after in itertools.pairwise(web.requests)]

    assert all(gap >= 1.5 for gap in gaps("obeyed"))
    assert all(0.2 <= gap < 1.5 for gap in gaps("capped", max_wait=0.2))


@pytest.mark.parametrize(
    ("user_agent", "product"),
    [
        ("webtext/0.1", "webtext"),
        ("My-Bot/2.0 (+http://example.org/bot)", "my-bot"),
        ("Mozilla/5.0 (compatible; MyBot/1.0; +http://example.org)", "mybot"),
        ("42", "*"),
    ],
)
def test_product_tokens(user_agent: str, product: str) -> None:
    assert product_token(user_agent) == product


def test_another_user_agent_gets_its_own_rules(tmp_path: Path) -> None:
    rules = Answer(b"User-agent: mybot\nDisallow: /a\n\nUser-agent: *\nDisallow: /b\n", 200, {"Content-Type": HTML})
    assert _outcomes(tmp_path, rules, ["/a", "/b"], user_agent="MyBot/1.0") == ["robots", "ok"]


def test_agents_and_rules_are_not_multiplied() -> None:
    agents = "".join(f"User-agent: bot{number}\n" for number in range(15_000))
    rules = "".join(f"Disallow: /{number}\n" for number in range(30_000))
    started = time.monotonic()
    parsed = parse_rules(Response(200, "", "HTTP/1.1", (), body=f"{agents}{rules}".encode()), ["webtext"])
    assert parsed.lines == ()
    everyone = parse_rules(
        Response(200, "", "HTTP/1.1", (), body=f"{agents}User-agent: *\n{rules}".encode()), ["webtext"]
    )
    assert 0 < everyone.size_bytes < robots.MAX_BYTES
    assert everyone.check("http://example.org/29") is not None
    assert everyone.check("http://example.org/x") is None
    assert time.monotonic() - started < 20  # 2 s at rest; Protego alone did not finish in 150 s


def test_many_wildcards_are_matched_in_bounded_time() -> None:
    rules = "User-agent: *\n" + "".join(f"Disallow: /*a*a*a*b{number}$\n" for number in range(22_000))
    parsed = parse_rules(Response(200, "", "HTTP/1.1", (), body=rules.encode()), ["webtext"])
    started = time.monotonic()
    assert parsed.check("http://example.org/" + "a" * 16_000) is None
    assert time.monotonic() - started < 10  # under 1 s at rest


_GROUPS = [
    "User-agent: *\nDisallow: /a\nUser-agent: webtext\nUser-agent: other\nDisallow: /b\nCrawl-delay: 3\n",
    "User-agent: web\nDisallow: /a\n\nUser-agent: webt\nDisallow: /b\n",
    "User-agent: webtext*\nDisallow: /a\nUser-agent: text\nDisallow: /b\n",
    "User-agent: x\nSitemap: http://example.org/s\nHost: example.org\nUser-agent: webtext\nDisallow: /a\n",
    "Disallow: /a\nUser agent webtext\ndisalow /b # why\nuseragent:*\nAllow: /b\n",
    "User-agent:\nUser-agent: *\nDisallow: /a\nDisallow:\nno rule\nUser-agent: we\nx: 1\nUser-agent: *\nAllow: /b",
    "USER-AGENT: WebText/1.0\nDisallow: /a\nUser-agent: webtext-images\nDisallow: /b\n",
    "User-agent: **\nDisallow: /a\nUser-agent: *\nDisallow: /b$\nDisallow: /*?x\n",
]


@pytest.mark.parametrize("text", _GROUPS)
@pytest.mark.parametrize("product", ["webtext", "web", "other", "*"])
def test_the_groups_that_apply_are_those_of_protego(text: str, product: str) -> None:
    expected = Protego.parse(text)
    parsed = parse_rules(Response(200, "", "HTTP/1.1", (), body=text.encode()), [product])
    for path in ("/", "/a", "/b", "/b/c", "/c?x"):
        allowed = parsed.check(f"http://example.org{path}") is None
        assert allowed == expected.can_fetch(f"http://example.org{path}", product), path
    assert parsed.crawl_delay_s == (expected.crawl_delay(product) or 0)


def test_rules_above_the_memory_budget_are_requested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "_MAX_RULES_BYTES", 40)
    rules = Answer(b"User-agent: *\nDisallow: /b\nDisallow: /padding\n", 200, _PLAIN)
    with LocalWeb({"/robots.txt": rules, "/a": _TEXT, "/b": _TEXT, "/c": _TEXT}) as one, LocalWeb(one.pages) as two:
        urls = [web.url(path) for path in ("/a", "/b", "/c") for web in (one, two)]
        fetched = run_fetch(tmp_path, urls, per_host_delay=0.1)
        assert [fetched.outcomes[url] for url in urls] == ["ok", "ok", "robots", "robots", "ok", "ok"]
        counts = [[request.url for request in web.requests].count("/robots.txt") for web in (one, two)]
        assert max(counts) > 1


def test_disallowed_pages_take_no_delay(tmp_path: Path) -> None:
    pages = {f"/b{number}": _TEXT for number in range(50)} | {"/a": _TEXT}
    with LocalWeb({**pages, "/robots.txt": Answer(b"User-agent: *\nDisallow: /b\n", 200, _PLAIN)}) as web:
        started = time.monotonic()
        outcomes = run_fetch(tmp_path, [web.url(path) for path in pages], per_host_delay=0.5).outcomes
        assert list(outcomes.values()) == ["robots"] * 50 + ["ok"]
        assert time.monotonic() - started < 15  # 50 delays would be 25 s
        assert web.paths() == ["/a"]
