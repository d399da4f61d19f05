"""Output of `webtext extract --explain`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.format import escape_unprintable, format_decimal, plural
from webtext_cli.console import print_table, say

_TEXT_CHARACTERS = 60
_LEGEND = "p: probability to be wanted; log odds: +2.0 multiplies the odds p / (1 - p) by 7.4, -2.0 divides them by 7.4"
_REPEATS = 'kept: "repeats" is left out because its text is kept in another block'


def print_explanation(explanation: Mapping[str, Any], as_json: bool) -> None:
    """Print the blocks of a page, then its outcome and the text that is written, or one JSON object."""
    if as_json:
        say(json.dumps(explanation, ensure_ascii=False))
        return
    if explanation["blocks"]:
        headings = ["block", "tag", "words", "kept", "p", "moved most by (log odds)"]
        print_table(headings, [_row(block) for block in explanation["blocks"]], narrow=True)
        say(_LEGEND)
        if any(block["is_repetition"] for block in explanation["blocks"]):
            say(_REPEATS)
        say("")
    detail = f" ({explanation['detail']})" if explanation["detail"] else ""
    kept = f"kept, {plural(explanation['words'], 'word')}"
    why = f"; no block is kept: {explanation['why_nothing']}" if explanation["why_nothing"] else ""
    say(f"page        {escape_unprintable(explanation['url'] or explanation['id'])}")
    say(f"title       {escape_unprintable(explanation['title'] or 'none')}")
    say(f"type        {explanation['page_type'] or 'not detected'}")
    say(f"confidence  {format_decimal(explanation['confidence'])} (the F1 to expect: 1.00 is exactly what is wanted)")
    reason = explanation["reason"]
    say(f"outcome     {f'dropped as {reason}{detail}{why}' if reason else kept}")
    if reason is None:
        say("")
        say(escape_unprintable(explanation["text"], keep="\n\t"))


def _row(block: Mapping[str, Any]) -> list[str]:
    line = escape_unprintable(" ".join(block["text"].split()))
    return [
        line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…",
        block["tag"],
        f"{block['words']:,}",
        "yes" if block["is_kept"] else "repeats" if block["is_repetition"] else "-",
        f"{block['probability']:.2f}",
        ", ".join(f"{group} {change:+.1f}" for group, change in block["moved_by"].items()),
    ]
