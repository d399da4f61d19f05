"""Output of `webtext extract --explain`, `filter --explain`, `--dry-run` and `--train-quality`, `dedup --self-test`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.errors import WebtextError
from pipelines.format import escape_unprintable, format_bytes, format_count, format_decimal, format_percent, plural
from webtext_cli.console import print_table, say, say_wrapped

_TEXT_CHARACTERS = 60
_LEGEND = "p: probability to be wanted; log odds: +2.0 multiplies the odds p / (1 - p) by 7.4, -2.0 divides them by 7.4"
_REPEATS = 'kept: "repeats" is left out because its text is kept in another block'


def print_extraction(explanation: Mapping[str, Any], as_json: bool) -> None:
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


def print_filtering(explanation: Mapping[str, Any], as_json: bool) -> None:
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


def print_self_test(result: Mapping[str, Any], as_json: bool) -> None:
    """Print the recall by similarity and by kind of copy; raise WebtextError if a document was wrongly dropped."""
    below, dropped = result["below_threshold"], plural(result["dropped"], "dropped document")
    if as_json:
        say(json.dumps(result, ensure_ascii=False))
    else:
        _print_tables(result)
        precision = format_percent(result["precision"], 2)
        say(f"{dropped}, {below:,} less similar to the kept one than the threshold: precision {precision}")
    if below:
        raise WebtextError(
            f"self-test: {below:,} of {dropped} are less similar to the kept one than the threshold; this is a bug in "
            "webtext, please report it"
        )


def _print_tables(result: Mapping[str, Any]) -> None:
    say_wrapped(
        f"Altered copies of {plural(result['documents'], 'document')} were planted and deduplicated with "
        f"{result['bands']} bands of {result['rows']} values. A pair is a kept document and its copy."
    )
    rows = [
        [f"{row['from']:.2f} to {row['to']:.2f}", *_recall(row), format_percent(row["predicted"], 2)]
        for row in result["ranges"]
    ]
    print_table(["Jaccard similarity", "pairs", "found", "recall", "S-curve"], rows, title="By similarity")
    rows = [
        [row["kind"], format_count(row["copies"]), format_decimal(row["mean_similarity"]), *_recall(row)]
        for row in result["kinds"]
    ]
    headings = ["copy", "copies", "mean similarity", "at the threshold", "found", "recall"]
    print_table(headings, rows, title="By kind of copy")


def _recall(row: Mapping[str, Any]) -> list[str]:
    return [format_count(row["pairs"]), format_count(row["found"]), format_percent(row["recall"], 2)]
