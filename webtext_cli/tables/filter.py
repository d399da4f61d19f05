"""Output of `webtext filter --explain`, `--dry-run` and `--train-quality`."""

from __future__ import annotations

import json
from typing import Any

from pipelines.format import escape_unprintable, format_bytes, format_percent
from pipelines.stages.filter.explain import Explanation, Funnel
from webtext_cli.console import print_table, say, say_wrapped


def print_explanation(explanation: Explanation, as_json: bool) -> None:
    """Print the value of every rule for a document, the verdict last, or one JSON object."""
    if as_json:
        values = [
            {"rule": rule.name, "statistic": rule.statistic, "value": value, "min": rule.min, "max": rule.max,
             "drops": fails, "source": rule.source}
            for rule, value, fails in explanation.values
        ]  # fmt: skip
        say(json.dumps({**explanation._asdict(), "values": values}, ensure_ascii=False))
        return
    say(f"id   {escape_unprintable(explanation.id)}")
    say(f"url  {escape_unprintable(explanation.url or '-')}")
    rows = [
        [
            rule.name,
            rule.statistic,
            f"{value:g}",
            f"{'at most' if rule.min is None else 'at least'} {rule.bound:g}",
            "drops it" if fails else "",
        ]
        for rule, value, fails in explanation.values
    ]
    print_table(["rule", "statistic", "value", "threshold", ""], rows)
    for name, value in explanation.measured.items():
        say(f"{name}  {f'{value:.3f}' if isinstance(value, float) else value}")
    detail = f" ({explanation.detail})" if explanation.detail else ""
    say_wrapped(f"dropped for {explanation.reason}{detail}" if explanation.reason else "kept")


def print_funnel(funnel: Funnel, as_json: bool) -> None:
    """Print how many documents of a sample each rule would drop, or one JSON object."""
    if as_json:
        say(json.dumps(funnel._asdict()))
        return
    left = funnel.documents
    rows = [["in", f"{left:,}", "100%"]]
    for reason, count in funnel.dropped.items():
        left -= count
        rows.append([f"dropped: {reason}", f"{count:,}", format_percent(count / funnel.documents)])
    rows.append(["out", f"{left:,}", format_percent(left / funnel.documents)])
    print_table(["sample", "documents", "share"], rows)
    say(f"{format_bytes(funnel.kept_bytes)} of {format_bytes(funnel.bytes)} of text are left; nothing was written")


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
