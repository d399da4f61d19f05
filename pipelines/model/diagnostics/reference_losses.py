"""Is my loss normal? Compares a held-out loss with published ones."""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib

from pipelines import storage
from pipelines.format import format_rounded
from pipelines.storage.resources import data_path

# Models within this ratio of parameters count as the same size: their losses differ less than those on two texts.
_SAME_SIZE_RATIO = 1.5
# The first logits have a deviation of 0.02 sqrt(width), which costs half its square over a uniform guess: 0.15 nats at
# width 768, 0.32 at 1600.
_INITIAL_TOLERANCE_NATS = 0.5


@dataclasses.dataclass(frozen=True)
class Reference:
    """A published held-out loss in nats per token; `tokens` of training is None if unpublished."""

    name: str
    text: str
    parameters: int
    vocab_size: int
    loss: float
    source: str
    tokens: int | None = None


@functools.cache
def references() -> tuple[Reference, ...]:
    """Return the published losses of `data/reference-losses.toml`."""
    table = tomllib.loads(storage.read_bytes(data_path("reference-losses.toml")).decode())
    return tuple(Reference(**entry) for entry in table.values())


def nearest_references(parameters: int) -> list[Reference]:
    """Return the references nearest in model size, whatever their vocabulary."""

    def distance(reference: Reference) -> float:
        return abs(math.log(reference.parameters / parameters))

    nearest = min(map(distance, references()))
    return [reference for reference in references() if distance(reference) <= nearest + 1e-9]


def compare_loss(parameters: int, vocab_size: int, tokens: int, loss: float) -> list[str]:
    """Return sentences that compare a held-out loss, in nats per token after `tokens` tokens, with known ones."""
    if not math.isfinite(loss):
        return [f"The held-out loss is {loss}, so it cannot be compared."]
    uniform = math.log(vocab_size)
    guess = f"a uniform guess over {vocab_size:,} entries has {uniform:.2f}"
    if tokens == 0:
        start = f"Held-out loss {loss:.3f} nats per token before the first step"
        if abs(loss - uniform) <= _INITIAL_TOLERANCE_NATS:
            return [f"{start}, as expected: {guess}."]
        if loss < uniform:
            return [f"{start}; {guess}: the weights were already trained."]
        return [f"{start}, worse than chance: {guess}. These are not the weights of a new model; check their source."]
    sentence = f"Held-out loss {loss:.3f} nats per token after {format_rounded(tokens)} tokens; {guess}."
    if loss >= uniform:
        return [sentence, "The loss is no better than chance: training has diverged, or has hardly started."]
    return [sentence, _compare_with_references(parameters, vocab_size, tokens, loss)]


def _compare_with_references(parameters: int, vocab_size: int, tokens: int, loss: float) -> str:
    nearest = nearest_references(parameters)
    listed = "; ".join(_describe(reference, vocab_size, tokens, loss) for reference in nearest)
    size = nearest[0].parameters
    ratio = size / parameters
    if ratio > _SAME_SIZE_RATIO:
        lead = f"No published model of this size; the nearest have {_two_digits(ratio)} times as many parameters"
    elif ratio < 1 / _SAME_SIZE_RATIO:
        lead = f"No published model of this size; the nearest have only {format_rounded(size)} parameters"
    else:
        lead = "Published losses of models of about this size"
    caution = (
        "Their held-out text differs, so a few tenths of a nat mean nothing."
        if vocab_size == nearest[0].vocab_size
        else f"Their vocabulary has {nearest[0].vocab_size:,} entries, yours {vocab_size:,}, so nats per token are not "
        "comparable; bits per byte on the same text would be."
    )
    return f"{lead}: {listed}. {caution}"


def _describe(reference: Reference, vocab_size: int, tokens: int, loss: float) -> str:
    text = f"{reference.name} {reference.loss:.2f} on {reference.text}"
    if reference.tokens:
        ratio = reference.tokens / tokens
        same = 1 / _SAME_SIZE_RATIO < ratio < _SAME_SIZE_RATIO
        times = "about as many as this run" if same else f"{_two_digits(ratio)} times this run’s"
        text += f" after {format_rounded(reference.tokens)} tokens ({times})"
    if vocab_size != reference.vocab_size:
        return text
    difference = loss - reference.loss
    return f"{text}, {abs(difference):.2f} {'below' if difference > 0 else 'above'} this"


def _two_digits(ratio: float) -> str:
    """Format a ratio with two significant digits: `4.8`, `120`, `23,000,000`."""
    return f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.2g}"
