"""A mixture: which share of the blocks of a training comes from each source, a named folder of `tokenize`.

A training on one folder is the mixture of a single source, `tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import msgspec

from pipelines.errors import UsageError

# The name of the source of a training without --mix.
SINGLE = "tokens"
_NAME = r"\w[\w.-]*"
_SOURCE = re.compile(rf"({_NAME})=(.+):((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(epochs?)?", re.DOTALL)
_MAX_AMOUNT = 1e300
_Amount = Annotated[float, msgspec.Meta(ge=0, le=_MAX_AMOUNT)]


class Segment(TypedDict):
    """The shares of the blocks of all steps from `from_step` on, counted from 0; they add up to 1."""

    from_step: int
    shares: dict[str, float]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of `tokenize`, and either its weight among the sources or how many epochs of it the run reads."""

    folder: Annotated[str, msgspec.Meta(min_length=1)]
    weight: _Amount | None = None
    epochs: _Amount | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for both or neither."""
        if (self.weight is None) == (self.epochs is None):
            raise ValueError("needs either weight or epochs")

    def argument(self, name: str, folder: str) -> str:
        """Return the value of --mix for this source in a folder."""
        return f"{name}={folder}:{self.weight if self.epochs is None else f'{self.epochs}epochs'}"


Sources = Mapping[str, Source]


def check_name(name: str, where: str) -> None:
    """Raise UsageError, which begins with the place, for what cannot be the name of a source."""
    if not re.fullmatch(_NAME, name):
        raise UsageError(f"{where}: {name!r} is not a name of letters, digits, hyphens, dots and underscores")


def input_name(name: str) -> str:
    """Return the name of a source among the inputs of a training."""
    return name if name == SINGLE else f"{SINGLE} of {name}"


def parse_sources(tokens: str | Sequence[str]) -> Sources:
    """Return the sources by name: one folder, or several as `NAME=DIR:WEIGHT` or `NAME=DIR:2epochs`.

    Raises UsageError for another form, or a name used twice.
    """
    if isinstance(tokens, str):
        return {SINGLE: Source(tokens, 1.0)}
    sources: dict[str, Source] = {}
    for value in tokens:
        if not (match := _SOURCE.fullmatch(value)) or float(match[3]) > _MAX_AMOUNT:
            raise UsageError(
                f"--mix {value}: expected NAME=DIR:WEIGHT, such as web=corpus/tokenize:0.6, or NAME=DIR:2epochs"
            )
        name, folder, amount, epochs = match.groups()
        if name in sources:
            raise UsageError(f"--mix {value}: the name {name} is used twice")
        sources[name] = Source(folder, **{"epochs" if epochs else "weight": float(amount)})
    return dict(sorted(sources.items()))


def segments_of(mixture: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments of a recipe's mixture, which is empty for a training without --mix."""
    return tuple(mixture) or (Segment(from_step=0, shares={SINGLE: 1.0}),)


def shares_at(mixture: Sequence[Segment], step: int) -> dict[str, float]:
    """Return the shares of a step, counted from 0."""
    return next(segment["shares"] for segment in reversed(segments_of(mixture)) if segment["from_step"] <= step)


def planned_blocks(mixture: Sequence[Segment], steps: int, batch_size: int) -> dict[str, float]:
    """Return how many blocks of each source the first steps read, by their shares."""
    segments, blocks = segments_of(mixture), dict[str, float]()
    for segment, end in zip(segments, [*(later["from_step"] for later in segments[1:]), steps], strict=True):
        read = max(0, min(end, steps) - segment["from_step"]) * batch_size
        for name, share in segment["shares"].items():
            blocks[name] = blocks.get(name, 0) + share * read
    return blocks


def format_losses(row: Mapping[str, Any]) -> str:
    """Return the held-out losses of the sources of a mixture in a row of `metrics.jsonl`, to add to the line of all."""
    prefix = "held_out_loss."
    losses = {name.removeprefix(prefix): loss for name, loss in row.items() if name.startswith(prefix)}
    return "".join(f"; {name} {loss:.4f}" for name, loss in losses.items())
