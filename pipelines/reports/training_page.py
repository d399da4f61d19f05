"""The page of a training run, `training.html`: its curves, where they stand, its spikes and its recipe."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.overlap_html import Cell, note, row, table, text_cell
from pipelines.reports.tokenizer_card_style import STYLE as _CARD_STYLE
from pipelines.reports.tokenizer_plots import Axis, Series, escaped
from pipelines.reports.training_plots import (
    DOTTED,
    Level,
    Points,
    after,
    curve,
    curve_plot,
    raw_and_smoothed,
    smoothing_steps,
    thinned,
)

Rows = Sequence[Mapping[str, Any]]

# Below so many steps the later half is not drawn again on its own.
_SHORT_STEPS = 20
# A curve whose numbers are further apart than this is drawn on a logarithmic axis.
_WIDE_RATIO = 20
_LISTED_SPIKES = 100
_CUT_SHARE = 0.005
_STYLE = (
    _CARD_STYLE
    + """
h1, p, td, dd { overflow-wrap: anywhere; }
:root { --held-out: #1a7f37; } @media (prefers-color-scheme: dark) { :root { --held-out: #57c26e; } }
polyline.raw { stroke: var(--ours); stroke-width: 1; opacity: .35; }
polyline.held-out { stroke: var(--held-out); stroke-width: 1.5; }
circle.held-out { fill: var(--held-out); r: 2.5px; }
.legend .raw::before { background: var(--ours); opacity: .35; }
.legend .held-out::before { background: var(--held-out); }
svg .level { stroke: var(--reference); stroke-dasharray: 5 3; }
svg .spike { stroke: var(--bad); stroke-dasharray: 2 2; }
.named th:nth-child(2), .spikes th:last-child { text-align: left; }
.scroll:has(.narrow) { width: fit-content; max-width: 100%; }
.narrow tbody th, .narrow td.text { min-width: 0; }
@media (max-width: 700px) { main { padding: 1.5rem 1rem 3rem; } figure svg { min-width: 17rem; }
  svg text { font-size: 13px; } }
"""
)


def training_page(
    rows: Rows, timing: Rows, about: Mapping[str, Any], references: Rows = (), spikes: Rows = ()
) -> bytes:
    """Return the page of a run, finished or not; every text in it is escaped.

    `rows` are those of `metrics.jsonl`, `timing` those of `timing.jsonl`. `about` has `title`, `parameters` and
    `recipe` (its values by name), and may have `vocab_size`, `notes` (sentences on where the run stands) and `facts`
    (texts by name, such as the device). `references` are published losses (`name`, `text`, `parameters`, `vocab_size`,
    `tokens` or None, `loss`); those of another vocabulary are listed but not drawn. `spikes` have `step`, `what`,
    `value`, `mean`, `z`, and may have `file`, where the batch was saved.
    """
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escaped(about['title'])}</title><style>{_STYLE}</style></head><body><main>",
        _heading(about),
        _tiles(rows, timing, about),
        f'<div class="plots">{_plots(rows, timing, about, references, spikes)}</div>',
        _references(references, about, _last(rows, "held_out_loss")),
        _spikes(spikes),
        _recipe(about),
        "</main></body></html>",
    ]
    return ("\n".join(part for part in parts if part) + "\n").encode()


def _heading(about: Mapping[str, Any]) -> str:
    facts = "".join(f"; {escaped(name)}: {escaped(str(text))}" for name, text in about.get("facts", {}).items())
    entries = f", {about['vocab_size']:,} entries" if about.get("vocab_size") else ""
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in about.get("notes", ()))
    lead = f"{about['parameters']:,} parameters{entries}{facts}."
    return f'<h1>{escaped(about["title"])}</h1><p class="lead">{lead}</p>{said}'


def _tiles(rows: Rows, timing: Rows, about: Mapping[str, Any]) -> str:
    tiles = [_progress(rows, about["recipe"]), _loss(rows), _held_out(rows), _speed(timing), _gradient(rows, about)]
    tiles.append(_time(timing, about["recipe"]))
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _progress(rows: Rows, recipe: Mapping[str, Any]) -> str:
    step = rows[-1]["step"] if rows else 0
    total = f"of {recipe['steps']:,}" if "steps" in recipe else ""
    tokens = step * recipe.get("batch_size", 0) * recipe.get("context", 0)
    return _tile("Step", f"{step:,}", total, f"{tokens:,} tokens" if tokens else "")


def _loss(rows: Rows) -> str:
    points = curve(rows, "loss")
    if not points:
        return _tile("Training loss", "–", "nats a token")
    steps = smoothing_steps(points)
    mean = statistics.fmean(value for _, value in points[-steps:])
    return _tile(
        "Training loss", f"{mean:.3f}", "nats a token", f"mean of the last {steps:,} steps" if steps > 1 else ""
    )


def _held_out(rows: Rows) -> str:
    found = _last(rows, "held_out_loss")
    if found is None:
        return _tile("Held-out loss", "–", "none measured so far")
    bits = found.get("held_out_bits_per_byte")
    measured = f"at step {found['step']:,}"
    if "held_out_tokens" in found:
        measured += f", over {found['held_out_tokens']:,} tokens"
    per_byte = f"{bits:.3f} bits a byte" if bits is not None else ""
    return _tile("Held-out loss", f"{found['held_out_loss']:.3f}", "nats a token", measured, per_byte)


def _speed(timing: Rows) -> str:
    half = timing[len(timing) // 2 :]
    speeds = [value for _, value in curve(half, "tokens_per_second")]
    if not speeds:
        return _tile("Tokens a second", "–")
    shares = [value for _, value in curve(half, "utilisation")]
    share = f"{100 * statistics.median(shares):.1f}% of the card’s peak" if shares else "of the card’s peak: unknown"
    return _tile("Tokens a second", f"{statistics.median(speeds):,.0f}", share, "medians of the latter half")


def _gradient(rows: Rows, about: Mapping[str, Any]) -> str:
    norms = [value for _, value in curve(rows, "gradient_norm")]
    if not norms:
        return _tile("Gradient norm", "–")
    clip = about["recipe"].get("grad_clip")
    clipped = (
        f"{sum(value > clip for value in norms) / len(norms):.0%} of the steps clipped at {clip:g}" if clip else ""
    )
    return _tile("Gradient norm", f"{norms[-1]:.3g}", clipped)


def _time(timing: Rows, recipe: Mapping[str, Any]) -> str:
    seconds = curve(timing, "seconds")
    if not seconds:
        return _tile("Time", "–")
    spent = sum(value for _, value in seconds)
    left = (recipe.get("steps", 0) - seconds[-1][0]) * statistics.median(value for _, value in seconds)
    return _tile(
        "Time", _duration(spent), "in steps, without evaluations", f"about {_duration(left)} left" if left > 0 else ""
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _tile(name: str, value: str, *notes: str) -> str:
    listed = "".join(f"<span>{escaped(each)}</span>" for each in notes if each)
    return f"<div><dt>{escaped(name)}</dt><dd><strong>{escaped(value)}</strong>{listed}</dd></div>"


def _plots(rows: Rows, timing: Rows, about: Mapping[str, Any], references: Rows, spikes: Rows) -> str:
    marked = sorted({float(each["step"]) for each in spikes})[:_LISTED_SPIKES]
    gradients, speeds = curve(rows, "gradient_norm"), curve(timing, "tokens_per_second")
    clip = about["recipe"].get("grad_clip")
    return "".join(
        [
            _loss_plots(rows, _drawable(references, about), marked),
            curve_plot(
                "Gradient norm",
                f"Before clipping{f' at {clip:g}' if clip else ''}.",
                raw_and_smoothed(gradients, "gradient norm"),
                Axis("", is_log=_is_wide(gradients)),
                spikes=marked,
            ),
            curve_plot(
                "Learning rate", "", [Series("learning rate", thinned(curve(rows, "learning_rate")), "ours")], Axis("")
            ),
            curve_plot("Tokens a second", "", raw_and_smoothed(speeds, "tokens a second"), Axis("")),
        ]
    )


def _loss_plots(rows: Rows, levels: Sequence[Level], spikes: Sequence[float]) -> str:
    losses, held_out = curve(rows, "loss"), curve(rows, "held_out_loss")
    dashed = " Dashed: published losses, listed below." if levels else ""
    series = [Series("held out", thinned(held_out), DOTTED), *raw_and_smoothed(losses, "training, every step")]
    whole = curve_plot("Loss", f"In nats a token.{dashed}", series, Axis(""), levels=levels, spikes=spikes)
    return whole + _later_loss_plot(losses, held_out, levels, spikes) if len(losses) >= _SHORT_STEPS else whole


def _later_loss_plot(losses: Points, held_out: Points, levels: Sequence[Level], spikes: Sequence[float]) -> str:
    middle = losses[len(losses) // 2][0]
    series = [
        Series("held out", thinned(after(held_out, middle)), DOTTED),
        *raw_and_smoothed(losses, "training, every step", middle, _CUT_SHARE),
    ]
    values = [value for each in series for _, value in each.points]
    return curve_plot(
        "Loss, the latter half",
        "Upwards only what is needed: the highest half percent of the steps is cut off.",
        series,
        Axis("", from_zero=False),
        levels=[each for each in levels if min(values) <= each.value <= max(values)],
        spikes=spikes,
        from_first_step=False,
    )


def _is_wide(points: Points) -> bool:
    values = [value for _, value in points]
    return bool(values) and min(values) > 0 and max(values) / min(values) > _WIDE_RATIO


def _drawable(references: Rows, about: Mapping[str, Any]) -> list[Level]:
    vocab_size = about.get("vocab_size")
    return [
        Level(each["name"], each["loss"])
        for each in references
        if vocab_size is None or each.get("vocab_size", vocab_size) == vocab_size
    ]


def _references(references: Rows, about: Mapping[str, Any], last: Mapping[str, Any] | None) -> str:
    if not references:
        return ""
    drawn = {level.name for level in _drawable(references, about)}
    lines = [_reference(each, last["held_out_loss"] if last and each["name"] in drawn else None) for each in references]
    heads = ("Model", "Text", "Parameters", "Tokens", "Entries", "Loss", "This run’s less it")
    return (
        "<h2>Published losses</h2>"
        + note(
            "Held-out losses in nats a token, dashed in the plots. Other text has other losses: a few tenths either "
            "way say nothing. Losses of another vocabulary do not compare, and are not drawn."
        )
        + table(heads, lines, "Published losses", style="named")
    )


def _reference(each: Mapping[str, Any], ours: float | None) -> str:
    difference = "–" if ours is None else f"{ours - each['loss']:+.2f}"
    return row(
        escaped(each["name"]),
        [
            text_cell(str(each.get("text") or "")),
            _count(each.get("parameters")),
            _count(each.get("tokens")),
            _count(each.get("vocab_size")),
            Cell(f"{each['loss']:.2f}"),
            Cell(difference),
        ],
    )


def _count(value: int | None) -> Cell:
    return Cell("–" if value is None else f"{value:,}")


def _spikes(spikes: Rows) -> str:
    if not spikes:
        return ""
    shown = list(spikes)[:_LISTED_SPIKES]
    more = note(f"The first {_LISTED_SPIKES} of {len(spikes):,}.") if len(spikes) > len(shown) else ""
    with_files = any(each.get("file") for each in shown)
    heads = ("Step", "What", "Value", "Mean before", "Deviations above", *(["File"] if with_files else []))
    lines = [_spike(each, with_files) for each in shown]
    style = "named spikes" if with_files else "named"
    about = "Steps whose loss or gradient norm stands out from those before; red in the plots."
    return f"<h2>Spikes</h2>{note(about)}{more}{table(heads, lines, 'Spikes', style=style)}"


def _spike(each: Mapping[str, Any], with_file: bool) -> str:
    cells = [text_cell(str(each["what"]).replace("_", " "))]
    cells += [Cell(escaped(_figure(each.get(name), digits))) for name, digits in (("value", 4), ("mean", 4), ("z", 3))]
    if with_file:
        file = each.get("file")
        cells.append(Cell(f"<code>{escaped(str(file))}</code>" if file else "–", is_text=True))
    return row(f"{each['step']:,}", cells)


def _figure(value: Any, digits: int) -> str:
    """Write a number of a spike; one that is none comes as a text or as null."""
    if value is None:
        return "–"
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return f"{value:.{digits}g}" if is_number else str(value)


def _recipe(about: Mapping[str, Any]) -> str:
    lines = [row(f"<code>{escaped(name)}</code>", [text_cell(str(value))]) for name, value in about["recipe"].items()]
    return f"<h2>Recipe</h2>{table(('Value', 'Set to'), lines, 'Recipe', style='named narrow')}" if lines else ""


def _last(rows: Rows, name: str) -> Mapping[str, Any] | None:
    """Return the last row with a finite number of a name."""
    found = (each for each in reversed(rows) if curve([each], name))
    return next(found, None)
