"""The choice of the blocks of a page by a model."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.algorithms.blocks.model import KINDS, BlockModel, choose_blocks
from pipelines.algorithms.blocks.page import parse_page
from pipelines.algorithms.blocks.values import values_table


@pytest.mark.parametrize(
    ("in_body", "in_metadata", "is_kept"),
    [(19, 0, False), (20, 0, True), (0, 59, False), (0, 60, True), (10, 10, True), (1, 58, True), (0, 0, False)],
)
def test_few_words_are_not_a_document(
    in_body: int, in_metadata: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def want_all(_network: object, features: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(features), 2), 5, np.float32), np.zeros(len(KINDS), np.float32)

    monkeypatch.setattr("pipelines.algorithms.blocks.network.evaluate", want_all)
    empty = values_table(np.zeros(0, np.uint32), np.zeros(0, np.float32))
    meta = f'<meta name="description" content="{"word " * in_metadata}">' if in_metadata else ""
    page = parse_page(f"<html><head>{meta}</head><body><p>{'text ' * in_body}</body></html>")
    choice = choose_blocks(BlockModel(None, empty, empty), page, None)  # type: ignore[arg-type]
    assert len(choice.keep) == bool(in_body) + bool(in_metadata)
    assert all(choice.keep) if is_kept else not any(choice.keep)
