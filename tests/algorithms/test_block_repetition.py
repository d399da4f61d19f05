"""What a page has twice is kept once."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.algorithms.blocks.model import without_repetitions
from pipelines.algorithms.blocks.page import parse_page
from pipelines.algorithms.blocks.rendering import render_blocks

LINE = "The river rises in the hills above the town and runs for miles."
OTHER = "It meets the sea in a wide bay where many ships have their harbour."
THIRD = "Nobody has counted them since the year of the great flood, they say."


# Copies are dropped on pages of hundreds of class names only.
STYLED = '<i class="icon menu item large open first"></i>' * 100


def kept(body: str, described: str = "") -> list[str]:
    meta = f'<meta name="description" content="{described}">' if described else ""
    page = parse_page(f"<html><head>{meta}</head><body>{body}</body></html>")
    keep = np.ones(len(page.segments.blocks), np.bool_)
    keep = without_repetitions(page.segments, keep, page.are_descriptions())
    return render_blocks(page.segments, keep).text.split("\n\n")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (f"{LINE} {OTHER}", [LINE, OTHER]),
        (f"{LINE} It has a bridge.", [LINE, OTHER]),
        (THIRD, [THIRD, LINE, OTHER]),
        ("River", [LINE, OTHER]),
    ],
)
def test_a_text_of_the_metadata_is_left_out_if_the_page_contains_it(described: str, expected: list[str]) -> None:
    assert kept(f"<p>{LINE}</p><p>{OTHER}</p>", described) == expected


def test_a_text_of_the_metadata_alone_is_kept() -> None:
    assert kept("", f"{LINE} {OTHER}") == [f"{LINE} {OTHER}"]


def test_a_copy_of_20_words_or_more_is_left_out() -> None:
    page = f"<p>{LINE}</p><p>{OTHER}</p>"
    assert kept(f"{STYLED}<div>{page}</div><p>{THIRD}</p><div>{page}</div>") == [LINE, OTHER, THIRD]
    assert kept(f"{STYLED}<p>{LINE}</p><p>{OTHER}</p><p>{LINE}</p>") == [LINE, OTHER, LINE]
    assert kept(f"{STYLED}<pre>{LINE} {OTHER}</pre>" * 2) == [f"{LINE} {OTHER}"] * 2


def test_a_plain_page_repeats_itself_on_purpose() -> None:
    page = f"<p>{LINE}</p><p>{OTHER}</p>"
    assert kept(f'<div class="text">{page}</div><h2>{THIRD}</h2>{page}') == [LINE, OTHER, THIRD, LINE, OTHER]
