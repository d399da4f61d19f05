"""The tokenizer's report card as one page of HTML: no network, no script, nothing beside it, light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.bpe.suspicious_tokens import shortened_runs
from pipelines.reports.tokenizer_card_style import STYLE
from pipelines.reports.tokenizer_plots import Axis, Bars, Series, bar_plot, escaped, histogram, line_plot

_OURS = "this tokenizer"
_TOKEN_CHARACTERS = 90
_LONGEST_DRAWN = 24
_ROWS_IN_SIGHT = 15
_HEADS = ("Entry", "Id", "Bytes", "In the corpus", "Held out", "When merged")

Card = Mapping[str, Any]


def render_card(card: Card) -> str:
    """Return the page for a card that `make_card` made; every text in it is escaped."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Tokenizer report card</title><style>{STYLE}</style></head><body><main>",
        _heading(card),
        _tiles(card),
        f'<div class="plots">{_group_bars(card)}{_lines(card)}{_lengths(card)}{_decades(card)}</div>',
        _comparison(card),
        _rare(card),
        _unused(card),
        _strange(card),
        _longest(card),
        _merges(card),
        _run(card),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _heading(card: Card) -> str:
    vocabulary, corpus, reference = card["vocabulary"], card["corpus"], card["reference"]
    beside = f", beside {escaped(reference['name'])} with {reference['entries']:,}" if reference else ""
    warnings = []
    if card["held_out"]["was_trained_on"]:
        warnings.append(
            '<p class="warning">No text was held out: the figures called “held out” are of the documents that '
            "<code>webtext tokenize</code> would hold out, <strong>but this tokenizer was trained on them</strong>, so "
            "they flatter it.</p>"
        )
    if card["verification"]["right"] < card["verification"]["checked"]:
        warnings.append('<p class="warning bad"><strong>Not every merge that was checked is right.</strong></p>')
    return (
        f'<h1>Tokenizer report card</h1><p class="lead">{vocabulary["entries"]:,} entries: 256 bytes, '
        f"{vocabulary['merges']:,} merges and &lt;|endoftext|&gt;{beside}. Figures of the corpus are exact: of "
        f"{corpus['words']:,} words ({corpus['distinct_words']:,} distinct), {_size(corpus['bytes'])}.</p>"
        + "".join(warnings)
    )


def _tiles(card: Card) -> str:
    corpus, held_out, rare, checked = card["corpus"], card["held_out"], card["rare"], card["verification"]
    whole = None if corpus["continued_words"] is None else 1 - corpus["continued_words"]
    tiles = [
        _tile("Bytes per token", _figure(corpus["bytes_per_token"]), _theirs(card, "bytes_per_token", 2)),
        _tile(
            "Fertility: tokens per word of letters",
            _figure(corpus["fertility"], 3),
            _theirs(card, "fertility", 3),
            f"{_percent(whole)} of these words are one token",
        ),
        _tile(
            "Rényi efficiency (α = 2.5)",
            _figure(corpus["renyi_efficiency"], 3),
            _theirs(card, "renyi_efficiency", 3),
            f"Shannon: {_figure(corpus['shannon_efficiency'], 3)}",
        ),
        _tile(
            "Entries that held-out text uses",
            _percent(held_out["share_used"]),
            f"{_count(held_out['entries_used'])} of {card['vocabulary']['entries'] - 1:,}",
            _their_use(card),
        ),
        _tile(
            f"Entries seen fewer than {rare['below']:,} times",
            f"{rare['entries']:,}",
            f"{rare['single_bytes']:,} of them single bytes; {rare['never']:,} never seen",
        ),
        _tile(
            "Merges counted anew",
            f"{checked['right']:,} of {checked['checked']:,} right",
            "each the most frequent pair of its step",
            style="good" if checked["right"] == checked["checked"] else "wrong",
        ),
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _theirs(card: Card, key: str, digits: int) -> str:
    reference = card["reference"]
    has_it = reference is not None and reference[key] is not None
    return f"{escaped(reference['name'])}: {_figure(reference[key], digits)}" if has_it else ""


def _their_use(card: Card) -> str:
    reference = card["reference"]
    return f"{escaped(reference['name'])}: {_percent(reference['held_out']['share_used'])}" if reference else ""


def _tile(name: str, value: str, *notes: str, style: str = "") -> str:
    listed = "".join(f"<span>{note}</span>" for note in notes if note)
    return f'<div class="{style}"><dt>{escaped(name)}</dt><dd><strong>{value}</strong>{listed}</dd></div>'


def _group_bars(card: Card) -> str:
    names = [(_OURS, "ours")] + ([(card["reference"]["name"], "reference")] if card["reference"] else [])
    groups = [
        Bars(row["group"], (row["bytes_per_token"], row["reference_bytes_per_token"])[: len(names)])
        for row in card["groups"]
    ]
    about = "Of the documents of the sample, the groups with the most bytes first. Longer bars: fewer tokens."
    return bar_plot("Bytes per token by group", about, names, groups)


def _both(card: Card, name: str) -> list[Series]:
    curves, theirs = card["curves"], card["reference"]["name"] if card["reference"] else ""
    return [Series(_OURS, curves[name], "ours"), Series(theirs, curves.get(f"reference_{name}") or [], "reference")]


def _lines(card: Card) -> str:
    return "".join(
        [
            line_plot(
                "Bytes per token by size of the vocabulary",
                "What its first entries alone would give, at the merges that were checked, and all of them.",
                _both(card, "bytes_per_token_by_entries"),
                Axis("entries", is_log=True),
                Axis("bytes per token"),
                with_dots=True,
            ),
            line_plot(
                "Frequency by rank",
                "How often the entries occur in the corpus, the most frequent first.",
                _both(card, "frequency_by_rank"),
                Axis("rank", is_log=True),
                Axis("times", is_log=True),
            ),
            line_plot(
                "Share of all tokens",
                "How much of the corpus the most frequent entries make up.",
                _both(card, "share_of_tokens"),
                Axis("most frequent entries", is_log=True),
                Axis("share", is_percent=True),
            ),
            line_plot(
                "Count of each merge",
                "How often the pair occurred when it was merged; its end is about what further entries are worth.",
                _both(card, "count_by_step"),
                Axis("merge", is_log=True),
                Axis("times", is_log=True),
            ),
        ]
    )


def _lengths(card: Card) -> str:
    return histogram(
        "Length of the entries",
        f"Entries by their length in bytes; the last bar is of {_LONGEST_DRAWN} and more.",
        _both(card, "entries_by_bytes"),
        Axis("bytes"),
        Axis("entries"),
        _LONGEST_DRAWN,
    )


def _decades(card: Card) -> str:
    counts = card["rare"]["by_powers_of_ten"]
    rows = [_row(_decade(power), [f"{entries:,}"]) for power, entries in enumerate(counts)]
    return (
        "<figure><figcaption><strong>Entries by how often they occur</strong> In the corpus, as it is encoded now."
        f"</figcaption>{_table(('Times', 'Entries'), rows)}</figure>"
    )


def _decade(power: int) -> str:
    return "never" if power == 0 else f"{10 ** (power - 1):,} to {10**power - 1:,}"


def _comparison(card: Card) -> str:
    theirs = card["reference"]
    heads = ["Group", "Documents", "Bytes", "Tokens", "Bytes per token"]
    if theirs:
        heads += [f"by {theirs['name']}", "Fewer tokens"]
    rows = [_group_row(row, theirs is not None) for row in card["groups"]]
    held = card["held_out"]
    where = "all held-out text" if held["measured_on"] == "all words" else "the held-out documents of the sample"
    line = (
        f"Of {where} ({_size(held['bytes'])}): {_figure(held['bytes_per_token'])} bytes per token"
        f"{', but it was trained on as well' if held['was_trained_on'] else ''}."
        if held["tokens"]
        else "No held-out text was measured."
    )
    return f"<h2>By group</h2>{_table(heads, rows)}{_note(line)}"


def _group_row(row: Mapping[str, Any], is_compared: bool) -> str:
    cells = [f"{row['documents']:,}", _size(row["bytes"]), f"{row['tokens']:,}", _figure(row["bytes_per_token"])]
    if is_compared:
        saved = 1 - row["tokens"] / row["reference_tokens"] if row["reference_tokens"] else None
        cells += [_figure(row["reference_bytes_per_token"]), _percent(saved)]
    return _row(escaped(row["group"]), cells)


def _rare(card: Card) -> str:
    rare = card["rare"]
    text = (
        f"{rare['entries']:,} entries occur fewer than {rare['below']:,} times in the corpus, so a model trained on it "
        "hardly learns what they mean (“glitch tokens”). An entry that was frequent when it was merged and is rare now "
        "is a step to longer ones. Single bytes are in every byte-level vocabulary; they stand last here."
    )
    return f"<h2>Rare entries</h2>{_note(text)}{_entries(rare['listed'], rare['entries'])}"


def _unused(card: Card) -> str:
    held = card["held_out"]
    title = "<h2>Entries that held-out text does not use</h2>"
    if not held["tokens"]:
        return title + _note("No held-out text was measured.")
    number = card["vocabulary"]["entries"] - 1 - held["entries_used"]
    where = "all that was held out" if held["measured_on"] == "all words" else "the held-out documents of the sample"
    text = (
        f"Not once in {where} ({_size(held['bytes'])}). The most frequent of the corpus first: an entry that is "
        "frequent there and missing here mostly comes from one document or one site."
    )
    return f"{title}{_note(text)}{_entries(held['unused'], number)}"


def _strange(card: Card) -> str:
    text = "What junk in a corpus tends to leave behind; each entry is of the first kind that fits."
    if not card["strange"]:
        text = "None of what junk in a corpus tends to leave behind."
    return f"<h2>Strange entries</h2>{_note(text)}" + "".join(
        f"<h3>{escaped(kind['kind'].capitalize())}: {kind['entries']:,}</h3>{_note(escaped(kind['what']))}"
        f"{_entries(kind['listed'], kind['entries'])}"
        for kind in card["strange"]
    )


def _longest(card: Card) -> str:
    return f"<h2>Longest entries</h2>{_entries(card['longest'], card['vocabulary']['entries'] - 1)}"


def _entries(entries: Sequence[Mapping[str, Any]], number: int) -> str:
    if not entries:
        return "<p>None.</p>"
    more = _note(f"{len(entries):,} of {number:,}.") if len(entries) < number else ""
    table = _table(_HEADS, [_entry_row(each) for each in entries])
    if len(entries) > _ROWS_IN_SIGHT:
        # One that scrolls must be reached by the keyboard as well.
        table = table.replace(
            'class="scroll"', 'class="scroll tall" tabindex="0" role="region" aria-label="Entries"', 1
        )
    return table + more


def _entry_row(entry: Mapping[str, Any]) -> str:
    values = (entry["id"], entry["bytes"], entry["count"], entry["held_out"], entry["when_merged"])
    return _row(_token(entry["token"]), [_count(value) for value in values])


def _token(token: str) -> str:
    text = shortened_runs(token)
    if len(text) > _TOKEN_CHARACTERS:
        half = _TOKEN_CHARACTERS // 2
        text = f"{text[:half]} … {text[-half:]}"
    return f"<code>{escaped(text)}</code>"


def _merges(card: Card) -> str:
    checked = card["verification"]
    text = (
        "For a sample of the merges, all words were encoded anew with the merges before it and all their pairs "
        "counted: the merge must be the most frequent pair, with the count that was recorded."
    )
    rows = [_checked_row(step) for step in checked["steps"]]
    table = _table(("Pair", "Merge", "Count", "Verdict"), rows) if rows else "<p>No merge was checked.</p>"
    return f"<h2>Merges counted anew</h2>{_note(text)}{table}"


def _checked_row(step: Mapping[str, Any]) -> str:
    found = f"{_pair(step['found_pair'])} {step['found_count']:,}" if step["found_pair"] else "no pair"
    verdict = "right" if step["is_right"] else f'<strong class="missed">found {found}</strong>'
    return _row(_pair(step["pair"]), [f"{step['step']:,}", f"{step['count']:,}", verdict])


def _pair(tokens: Sequence[str]) -> str:
    return " ".join(_token(token) for token in tokens)


def _run(card: Card) -> str:
    rows = [_row(escaped(name), [escaped(value)]) for name, value in _run_lines(card["run"])]
    return f"<h2>The run</h2>{_table(('Figure', 'Value'), rows)}" if rows else ""


def _run_lines(run: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Return the figures of a run as names and texts; what ends on `_bytes` or is in seconds has its unit."""
    lines: list[tuple[str, str]] = []
    for key, value in run.items():
        name = f"{before}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            lines += _run_lines(value, f"{name}: ")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            lines.append((name, str(value)))
        elif key.endswith("bytes"):
            lines.append((name.removesuffix(" bytes"), _size(value)))
        elif key.endswith("seconds") or before.startswith("seconds"):
            lines.append((name, f"{value:,.2f} s"))
        else:
            lines.append((name, _count(value) if isinstance(value, int) else f"{value:,.4g}"))
    return lines


def _row(head: str, cells: Sequence[str]) -> str:
    return f'<tr><th scope="row">{head}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _size(size_bytes: float) -> str:
    for name in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.0f} {name}" if name == "bytes" else f"{size_bytes:,.1f} {name}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"
