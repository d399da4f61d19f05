"""robots.txt of a host, according to RFC 9309."""

from __future__ import annotations

import dataclasses
import functools
import re

from protego import Protego

from pipelines.stages.fetch.exchange import Response, decode_body
from pipelines.stages.fetch.outcomes import Failure

MAX_REDIRECTS = 5
MAX_BYTES = 500 * 1024

_CLIENT_ERRORS = {"http_not_found", "http_forbidden", "http_client_error", "http_unexpected"}
_BAD_REDIRECTS = {"bad_redirect", "too_many_redirects"}

_COMPATIBLE = re.compile(r"compatible;\s*([A-Za-z_-]+)")
_FIRST_TOKEN = re.compile(r"\s*([A-Za-z_-]+)")

# Protego also accepts other spellings of the fields, and a space instead of the colon.
_AGENT_LINE = re.compile(r"user(?:-|\s*)agent(?:\s*:|\s|$)\s*(.*)", re.IGNORECASE)
_RULE_LINE = re.compile(r"(?!site-?maps?\b|host\b)(?:[^:]*:|allow|dis|crawl)", re.IGNORECASE)

# Parsed rules take up to ~30 times the memory of their text. These limits keep them under ~200 MB per process; rules
# that are not in their cache are parsed again (500 KiB: ~0.2 s). Few files have more than 32 KiB for a crawler.
_SMALL_BYTES = 32 << 10
_CACHED_SMALL = 128
_CACHED_LARGE = 4


@dataclasses.dataclass(frozen=True)
class RobotsRules:
    """The rules of a host: the lines that apply to our user agent; `refusal` is why nothing at all is allowed."""

    lines: bytes = b""
    crawl_delay_s: float = 0.0
    refusal: Failure | None = None

    def check(self, url: str, product: str) -> Failure | None:
        """Return why a page may not be requested, or None if it may; takes up to ~1 s for malicious rules."""
        if self.refusal is not None:
            return self.refusal
        if not self.lines or _parser(self.lines).can_fetch(url, "*"):
            return None
        return Failure("robots", f"robots.txt disallows it for {product}")


def product_token(user_agent: str) -> str:
    """Return the name that groups in robots.txt are matched against.

    `webtext` for `webtext/0.1 (+contact)`, `product` for `Mozilla/5.0 (compatible; product/1.0)`.
    """
    match = _COMPATIBLE.search(user_agent) or _FIRST_TOKEN.match(user_agent)
    return match[1].lower() if match else "*"


def parse_rules(response: Response, product: str) -> RobotsRules:
    """Parse the rules for a product token in a successful response."""
    text = decode_body(response.body or b"", response.coding, MAX_BYTES, is_whole=False).decode("utf-8", "replace")
    lines = applicable_lines(text.removeprefix("\ufeff"), product).encode()
    return RobotsRules(lines, float(_parser(lines).crawl_delay("*") or 0))


def applicable_lines(text: str, product: str) -> str:
    """Return the rule lines of the groups that apply to a product token, in time linear in the text.

    Protego would copy the rules of a group for each of its user agents: 15,000 user agents x 30,000 rules took more
    than 3 GB. As in Protego, the longest name that the product begins with wins, and `*` stands for all other products.
    """
    groups: list[tuple[list[str], list[str]]] = []  # names and rule lines
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if agent := _AGENT_LINE.match(line):
            if not groups or groups[-1][1]:
                groups.append(([], []))
            name = agent[1].lower()
            groups[-1][0].append(name if name == "*" else name.replace("*", ""))
        elif groups and _RULE_LINE.match(line):
            groups[-1][1].append(line)
    ranks = {name: len(name) for names, _ in groups for name in names if name and product.startswith(name)}
    best = max(ranks, key=lambda name: ranks[name], default="*")
    return "\n".join(line for names, lines in groups if best in names for line in lines)


def _parser(lines: bytes) -> Protego:
    return (_parse_small if len(lines) <= _SMALL_BYTES else _parse_large)(lines)


def _parse(lines: bytes) -> Protego:
    return Protego.parse(f"User-agent: *\n{lines.decode()}")


_parse_small = functools.lru_cache(maxsize=_CACHED_SMALL)(_parse)
_parse_large = functools.lru_cache(maxsize=_CACHED_LARGE)(_parse)


def rules_without_file(failure: Failure, reached: bool) -> RobotsRules:
    """Return the rules of a host whose robots.txt could not be read; `reached` says whether the host answered at all.

    A client error or a redirect that leads nowhere means that there is no file: everything is allowed. After a server
    error, a 429 or a timeout the rules are unknown: nothing is allowed. If the host was never reached, its pages fail
    for that same reason.
    """
    if failure.reason in _CLIENT_ERRORS | _BAD_REDIRECTS:
        return RobotsRules()
    if not reached:
        return RobotsRules(refusal=failure)
    return RobotsRules(refusal=Failure("robots_unreachable", f"{failure.reason}: {failure.detail}"))
