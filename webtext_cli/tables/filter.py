"""Output of `webtext filter --explain`, `--dry-run` and `--train-quality`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.format import escape_unprintable, format_bytes, format_percent
from webtext_cli.console import print_table, say, say_wrapped


def print_explanation(explanation: Mapping[str, Any], as_json: bool) -> None:
    """Print the value of every rule for a document, the verdict last, or one JSON object."""
    if as_json:
        say(json.dumps(explanation, ensure_ascii=False))
        return
    say(f"id   {escape_unprintable(explanation['id'])}")
    say(f"url  {escape_unprintable(explanation['url'] or '-')}")
    rows = [
        [
            rule["rule"],
            rule["statistic"],
            f"{rule['value']:g}",
            f"at most {rule['max']:g}" if rule["min"] is None else f"at least {rule['min']:g}",
            "drops it" if rule["drops"] else "",
        ]
        for rule in explanation["values"]
    ]
    print_table(["rule", "statistic", "value", "threshold", ""], rows)
    for name, value in explanation["measured"].items():
        say(f"{name}  {f'{value:.3f}' if isinstance(value, float) else value}")
    detail = f" ({explanation['detail']})" if explanation["detail"] else ""
    say_wrapped(f"dropped for {explanation['reason']}{detail}" if explanation["reason"] else "kept")


def print_funnel(funnel: Mapping[str, Any], as_json: bool) -> None:
    """Print how many documents of a sample each rule would drop, or one JSON object."""
    if as_json:
        say(json.dumps(funnel))
        return
    documents = left = funnel["documents"]
    rows = [["in", f"{documents:,}", "100%"]]
    for reason, count in funnel["dropped"].items():
        left -= count
        rows.append([f"dropped: {reason}", f"{count:,}", format_percent(count / documents)])
    rows.append(["out", f"{left:,}", format_percent(left / documents)])
    print_table(["sample", "documents", "share"], rows)
    kept, total = format_bytes(funnel["kept_bytes"]), format_bytes(funnel["bytes"])
    say(f"{kept} of {total} of text are left; nothing was written")


def print_card(output: str, card: dict[str, Any], as_json: bool) -> None:
    """Print what a quality model was trained on and how it does on held-out documents, or its card."""
    if as_json:
        say(json.dumps(card))
        return
    for side in ("good", "against"):
        say(f"{side}: {card[side]['sampled']:,} of {card[side]['documents']:,} documents")
    held_out = card["held_out"]
    sizes = f"{held_out['good']:,} good documents, {held_out['against']:,} others"
    say(f"held out: ROC AUC {held_out['roc_auc']:.4f} ({sizes})")
    rows = [
        [f"{row['score']:g}", *(format_percent(row[side]) for side in ("good", "against"))] for row in held_out["curve"]
    ]
    print_table(["score at least", "good", "against"], rows)
    say(f"{output}: card.json and weights.npy written")
