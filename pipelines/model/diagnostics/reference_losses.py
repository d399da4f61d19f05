"""Is my loss normal? Where a held-out loss stands beside those that others published."""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Sequence
from typing import Any

from pipelines.core import storage
from pipelines.core.resources import data_path

# Models of about one size: their losses differ by less than those of two texts do.
_ABOUT_THE_SAME = 1.5
# The first logits deviate by 0.02 sqrt(width), so that the first guess costs half the square of that over a uniform
# one: 0.15 nats with a width of 768, 0.32 with 1600.
_FIRST_GUESS_NATS = 0.5


@dataclasses.dataclass(frozen=True)
class Reference:
    """A published held-out loss in nats a token; `tokens` of training are None where nobody says how many."""

    name: str
    text: str
    parameters: int
    vocab_size: int
    loss: float
    source: str
    tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it for `pipelines.reports.training`."""
        return dataclasses.asdict(self)


@functools.cache
def references() -> tuple[Reference, ...]:
    """Return all published losses of `data/reference-losses.toml`."""
    table = tomllib.loads(storage.read_bytes(data_path("reference-losses.toml")).decode())
    return tuple(Reference(**entry) for entry in table.values())


def nearest_references(parameters: int) -> list[Reference]:
    """Return the references whose models are nearest in size, whatever their vocabulary."""

    def distance(reference: Reference) -> float:
        return abs(math.log(reference.parameters / parameters))

    nearest = min(map(distance, references()))
    return [each for each in references() if distance(each) <= nearest + 1e-9]


def where_it_stands(parameters: int, vocab_size: int, tokens_seen: int, held_out_loss: float) -> list[str]:
    """Return a few sentences that put a held-out loss, in nats a token, beside a uniform guess and published ones."""
    if not math.isfinite(held_out_loss):
        return [f"The held-out loss is {held_out_loss}: no number to compare."]
    uniform = math.log(vocab_size)
    if tokens_seen == 0:
        return [_first_guess(uniform, vocab_size, held_out_loss)]
    said = [
        f"Held-out loss {held_out_loss:.3f} nats a token after {count_text(tokens_seen)} tokens; a uniform guess among "
        f"{vocab_size:,} entries has {uniform:.2f}."
    ]
    if held_out_loss >= uniform:
        return [*said, "It is no better than that guess: training has diverged, or has hardly begun."]
    return [*said, _beside(nearest_references(parameters), parameters, vocab_size, tokens_seen, held_out_loss)]


def _first_guess(uniform: float, vocab_size: int, loss: float) -> str:
    guess = f"a uniform guess among {vocab_size:,} entries has {uniform:.2f}"
    if abs(loss - uniform) <= _FIRST_GUESS_NATS:
        return f"Held-out loss {loss:.3f} nats a token before the first step, as it should be: {guess}."
    if loss < uniform:
        return f"Held-out loss {loss:.3f} nats a token before the first step; {guess}: the weights were trained before."
    return (
        f"Held-out loss {loss:.3f} nats a token before the first step, worse than no knowledge at all: {guess}. "
        "The weights are not as a new model's; look at where they are from."
    )


def _beside(nearest: Sequence[Reference], parameters: int, vocab_size: int, tokens_seen: int, loss: float) -> str:
    known = "; ".join(_one(each, tokens_seen, loss, vocab_size) for each in nearest)
    size = nearest[0].parameters
    ratio = size / parameters
    if ratio > _ABOUT_THE_SAME:
        lead = f"No published model is of this size; the nearest have {_rounded(ratio)} times as many parameters"
    elif ratio < 1 / _ABOUT_THE_SAME:
        lead = f"No published model is of this size; the nearest have {count_text(size)} parameters, fewer than this"
    else:
        lead = "Published losses of models of about this size"
    return f"{lead}: {known}. {_caution(nearest[0].vocab_size, vocab_size)}"


def _one(reference: Reference, tokens_seen: int, loss: float, vocab_size: int) -> str:
    said = f"{reference.name} {reference.loss:.2f} on {reference.text}"
    if reference.tokens:
        said += f" after {count_text(reference.tokens)} tokens ({_times(reference.tokens / tokens_seen)})"
    if vocab_size != reference.vocab_size:
        return said
    difference = loss - reference.loss
    return f"{said}, {abs(difference):.2f} {'below' if difference > 0 else 'above'} this"


def _times(ratio: float) -> str:
    if 1 / _ABOUT_THE_SAME < ratio < _ABOUT_THE_SAME:
        return "about as many as this run"
    return f"{_rounded(ratio)} times this run’s"


def _rounded(ratio: float) -> str:
    """Write a ratio in two figures: `4.8`, `120`, `23,000,000`."""
    return f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _caution(their_vocab_size: int, vocab_size: int) -> str:
    if vocab_size != their_vocab_size:
        return (
            f"Their tokens are of {their_vocab_size:,} entries and yours of {vocab_size:,}, so nats a token do not "
            "compare; only bits a byte on the same text would."
        )
    return "Their held-out text is another, so that a few tenths of a nat either way say nothing."


def count_text(number: float) -> str:
    """Write a large number for people: `300 billion`, `2.1 million`, `9,830`."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,.0f}"
