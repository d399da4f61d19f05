"""What a host's robots.txt says to us, by RFC 9309."""

from __future__ import annotations

import dataclasses
import re

from protego import Protego

from pipelines.stages.fetch.decoding import decoded_start
from pipelines.stages.fetch.exchange import Limits, Response
from pipelines.stages.fetch.outcomes import Failure

MAX_REDIRECTS = 5
MAX_BYTES = 500 * 1024

_NO_FILE = {
    "http_not_found",
    "http_forbidden",
    "http_client_error",
    "http_unexpected",
    "bad_redirect",
    "too_many_redirects",
}

_COMPATIBLE = re.compile(r"compatible;\s*([A-Za-z_-]+)")
_FIRST_WORD = re.compile(r"\s*([A-Za-z_-]+)")


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a host allows; `refusal` is why it allows nothing at all."""

    parsed: Protego | None = None
    refusal: Failure | None = None

    def refusal_of(self, url: str, product: str) -> Failure | None:
        """Return why a page may not be asked for, or None."""
        if self.refusal is not None:
            return self.refusal
        if self.parsed is None or self.parsed.can_fetch(url, product):
            return None
        return Failure("robots", f"robots.txt disallows it for {product}")

    def crawl_delay_s(self, product: str) -> float:
        """Return the pause that the host asks for, 0 where it does not."""
        return 0.0 if self.parsed is None else float(self.parsed.crawl_delay(product) or 0)


def product_of(user_agent: str) -> str:
    """Return the name for which robots.txt is read.

    `webtext` of `webtext/0.1 (+contact)`, `product` of `Mozilla/5.0 (compatible; product/1.0)`.
    """
    match = _COMPATIBLE.search(user_agent) or _FIRST_WORD.match(user_agent)
    return match[1].lower() if match else "*"


def limits(timeout_s: float) -> Limits:
    """Return the limits of a request for robots.txt: 500 KiB of it are read."""
    return Limits(timeout_s, MAX_BYTES, cut=True)


def wanted(response: Response) -> bool:
    """Tell whether the body of an answer is a robots.txt."""
    return response.status // 100 == 2


def rules_of(response: Response) -> Rules:
    """Read the rules from a successful answer."""
    text = decoded_start(response.body or b"", response.coding, MAX_BYTES).decode("utf-8", "replace")
    return Rules(Protego.parse(text.removeprefix("\ufeff")))


def rules_without_file(failure: Failure, reached: bool) -> Rules:
    """Return what holds where there is no robots.txt to read; `reached` tells whether the host answered at all.

    A client error, or a redirect that leads nowhere, means that there is none, so everything is allowed. A server
    error, a 429 or a timeout means that it cannot be known, so nothing is. A host that was never reached fails its
    pages for that very reason.
    """
    if failure.reason in _NO_FILE:
        return Rules()
    if not reached:
        return Rules(refusal=failure)
    return Rules(refusal=Failure("robots_unreachable", f"{failure.reason}: {failure.detail}"))
