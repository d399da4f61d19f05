"""The choice of the blocks of a page by a model."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.algorithms.blocks.model import KINDS, BlockModel, choose_blocks
from pipelines.algorithms.blocks.page import parse_page
from pipelines.algorithms.blocks.text_features import values_table


@pytest.mark.parametrize(
    ("text", "in_metadata", "odds", "is_kept"),
    [
        ("text " * 9, 0, 5, False),
        ("text " * 10, 0, 0.5, True),
        ("文" * 19, 0, 5, False),
        ("文" * 20, 0, 0.5, True),
        ("", 74, 5, False),
        ("", 75, 5, True),
        ("text " * 13, 13, 0.5, True),
        ("text", 8, 5, False),
        ("", 0, 5, False),
    ],
)
def test_a_few_words_are_not_a_document(
    text: str, in_metadata: int, odds: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def want_all(_network: object, features: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(features), 2), odds, np.float32), np.zeros(len(KINDS), np.float32)

    monkeypatch.setattr("pipelines.algorithms.blocks.model.evaluate", want_all)
    empty = values_table(np.zeros(0, np.uint32), np.zeros(0, np.float32))
    meta = f'<meta name="description" content="{"word " * in_metadata}">' if in_metadata else ""
    page = parse_page(f"<html><head>{meta}</head><body><p>{text}</body></html>")
    choice = choose_blocks(BlockModel(None, empty, empty), page, None)  # type: ignore[arg-type]
    assert len(choice.keep) == bool(text) + bool(in_metadata)
    assert all(choice.keep) if is_kept else not any(choice.keep)
