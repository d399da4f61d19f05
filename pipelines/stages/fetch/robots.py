"""robots.txt of a host, according to RFC 9309."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from pipelines.algorithms.web.signals import MAX_BYTES, applicable_lines, is_allowed, parse_groups, parser
from pipelines.stages.fetch.exchange import Response, decode_body
from pipelines.stages.fetch.outcomes import Failure, unexpected_failure

MAX_REDIRECTS = 5

_NO_FILE = "http_not_found http_forbidden http_client_error http_unexpected bad_redirect too_many_redirects".split()

_COMPATIBLE = re.compile(r"compatible;\s*([A-Za-z_-]+)")
_FIRST_TOKEN = re.compile(r"\s*([A-Za-z_-]+)")


@dataclasses.dataclass(frozen=True)
class RobotsRules:
    """The rules of a host: those that apply to our user agent, and to each agent whose rules are honored, too.

    `lines` are of the products whose lines differ. `refusal` is why nothing at all is allowed.
    """

    lines: tuple[tuple[str, bytes], ...] = ()
    crawl_delay_s: float = 0.0
    refusal: Failure | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all lines."""
        return sum(len(lines) for _, lines in self.lines)

    def check(self, url: str) -> Failure | None:
        """Return why a page may not be requested, or None if it may; takes up to ~1 s for malicious rules."""
        if self.refusal is not None:
            return self.refusal
        try:
            product = next((product for product, lines in self.lines if not is_allowed(lines, url)), None)
        except Exception as error:  # noqa: BLE001 - see `unexpected_failure`
            return unexpected_failure(error)
        return None if product is None else Failure("robots", f"robots.txt disallows it for {product}")


def product_token(user_agent: str) -> str:
    """Return the name that groups in robots.txt are matched against.

    `webtext` for `webtext/0.1 (+contact)`, `product` for `Mozilla/5.0 (compatible; product/1.0)`.
    """
    match = _COMPATIBLE.search(user_agent) or _FIRST_TOKEN.match(user_agent)
    return match[1].lower() if match else "*"


def parse_rules(response: Response, products: Sequence[str]) -> RobotsRules:
    """Parse the rules for product tokens in a successful response; the crawl delay is that of the first one."""
    groups = parse_groups(decode_body(response.body or b"", response.coding, MAX_BYTES, is_whole=False))
    by_lines: dict[bytes, str] = {}
    for product in products:
        by_lines.setdefault(applicable_lines(groups, product.lower()), product)
    own = next(iter(by_lines))
    delay_s = float(parser(own).crawl_delay("*") or 0)
    return RobotsRules(tuple((product, lines) for lines, product in by_lines.items() if lines), delay_s)


def rules_without_file(failure: Failure, reached: bool) -> RobotsRules:
    """Return the rules of a host whose robots.txt could not be read; `reached` says whether the host answered at all.

    A client error or a redirect that leads nowhere means that there is no file: everything is allowed. After a server
    error, a 429 or a timeout the rules are unknown: nothing is allowed. If the host was never reached, its pages fail
    for that same reason.
    """
    if failure.reason in _NO_FILE:
        return RobotsRules()
    if not reached:
        return RobotsRules(refusal=failure)
    return RobotsRules(refusal=Failure("robots_unreachable", f"{failure.reason}: {failure.detail}"))
