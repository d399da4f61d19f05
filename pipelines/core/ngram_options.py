"""The options that say what an n-gram is: the same for an index and for what asks it."""

from __future__ import annotations

from typing import Any

from pipelines.core.config import option


def ngram_option() -> Any:
    """Return the option for the words of an n-gram."""
    return option(8, "Words in an n-gram.", minimum=1, maximum=100)


def apostrophes_option() -> Any:
    """Return the option for `Normalization.apostrophes`."""
    words = "An apostrophe within a word ends it (don, t), or is dropped from it (dont)."
    return option("split", words, choices=("split", "drop"))


def letters_option() -> Any:
    """Return the option for `Normalization.letters`."""
    words = "Words are letters and digits of all scripts, or of ASCII, where all other characters end a word."
    return option("unicode", words, choices=("unicode", "ascii"))


def lines_option() -> Any:
    """Return the option for `Normalization.lines`."""
    return option("cross", "N-grams go across line ends, or stop at them.", choices=("cross", "stop"))
