"""Variants of pages for training: the labels follow their blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.extractor.augmentation import Shares, augment, insert, keep_blocks, made_page, plain_page, with_cards
from benchmarks.extractor.pages import LabelledPage
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import TAGS
from pipelines.algorithms.blocks.page import parse_page
from pipelines.algorithms.blocks.rendering import render_blocks

_HTML = """<html><head><title>River</title><meta name="description" content="About the river"></head><body>
<div class="menu"><a>Home</a><ul><li>News</li><li>Sport</li></ul></div>
<div class="main"><div class="text"><p class="lead">The river rises here.</p><p>It meets the sea.</p></div></div>
<div class="footer">Imprint</div></body></html>"""


def _page() -> LabelledPage:
    page = parse_page(_HTML)
    texts = _texts(page.segments)
    assert texts == [
        "About the river",
        "Home",
        "News",
        "Sport",
        "The river rises here.",
        "It meets the sea.",
        "Imprint",
    ]
    labels = np.array([0, 0, 0, 0, 0.75, 1, 0.25], np.float32)
    return LabelledPage("1", Path(), None, page, labels, kind="article", group=3)


def _texts(segments: seg.Segments) -> list[str]:
    text = segments.text.tobytes()
    return [text[row[seg.START] : row[seg.END]].decode() for row in segments.blocks]


def _check(page: LabelledPage) -> None:
    segments = page.page.segments
    count = len(segments.parents)
    assert len(page.labels) == len(segments.blocks)
    assert len(segments.tags) == len(segments.flags) == len(segments.token_starts) - 1 == count
    assert segments.token_starts[-1] == len(segments.tokens)
    assert (segments.parents < np.arange(count)).all()
    assert (segments.parents[1:] >= 0).all()
    assert (segments.blocks[:, seg.ELEMENT] < count).all()
    starts = np.cumsum(segments.blocks[:, seg.WORDS]) - segments.blocks[:, seg.WORDS]
    assert (segments.blocks[:, seg.FIRST_WORD] == starts).all()
    assert len(segments.words) == len(segments.word_flags) == segments.blocks[:, seg.WORDS].sum()


def _words(page: LabelledPage, block: int) -> list[int]:
    first, count = page.page.segments.blocks[block, [seg.FIRST_WORD, seg.WORDS]]
    return page.page.segments.words[first : first + count].tolist()


def test_kept_blocks_have_their_words_labels_and_the_nearest_element_that_is_left() -> None:
    page = _page()
    wrappers = np.isin(page.page.segments.tags, [TAGS["div"], TAGS["ul"]])
    kept = np.array([True, False, False, True, True, True, False])
    plain = keep_blocks(page, kept, wrappers, has_tokens=False)
    _check(plain)
    assert _texts(plain.page.segments) == ["About the river", "Sport", "The river rises here.", "It meets the sea."]
    assert plain.labels.tolist() == [0, 0, 0.75, 1]
    assert [_words(plain, block) for block in range(4)] == [_words(page, block) for block in (0, 3, 4, 5)]
    segments = plain.page.segments
    names = [segments.tags[element] for element in segments.parents[segments.blocks[1:, seg.ELEMENT]]]
    assert names == [TAGS["body"]] * 3
    # What the metadata says remains recognizable.
    assert plain.page.are_descriptions().tolist() == [True, False, False, False]
    assert len(segments.tokens) == 3


def test_all_blocks_with_their_classes_are_the_page_itself() -> None:
    page = _page()
    same = keep_blocks(page, np.ones(7, np.bool_), np.zeros(len(page.page.segments.parents), np.bool_), has_tokens=True)
    _check(same)
    assert same.page.segments.tokens.tolist() == page.page.segments.tokens.tolist()
    assert (
        render_blocks(same.page.segments, same.labels > 0).text
        == render_blocks(page.page.segments, page.labels > 0).text
    )


def test_inserted_blocks_come_after_those_of_the_element() -> None:
    page, cards = _page(), _page()
    cards.labels[:] = 0
    element = int(page.page.segments.blocks[4, seg.ELEMENT])
    parent = int(page.page.segments.parents[element])
    both = insert(page, cards, parent)
    _check(both)
    texts = _texts(page.page.segments)
    assert _texts(both.page.segments) == [*texts[:6], *texts, *texts[6:]]
    assert both.labels.tolist() == [*page.labels[:6].tolist(), *[0] * 7, 0.25]
    segments = both.page.segments
    assert segments.tags[segments.blocks[[5, 13], seg.ELEMENT]].tolist() == [TAGS["p"], TAGS["div"]]
    assert _words(both, 13) == _words(page, 6)
    # The page's own classes are still those of its elements.
    last, was = segments.blocks[13, seg.ELEMENT], page.page.segments.blocks[6, seg.ELEMENT]
    tokens = segments.tokens[segments.token_starts[last] : segments.token_starts[last + 1]]
    starts = page.page.segments.token_starts
    assert tokens.tolist() == page.page.segments.tokens[starts[was] : starts[was + 1]].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_variants_are_consistent(seed: int) -> None:
    random = np.random.default_rng(seed)
    for page in (made_page(random, 2), plain_page(_page(), random), with_cards(_page(), random)):
        _check(page)
        assert len(page.labels)
    cards = with_cards(_page(), random)
    assert len(cards.labels) > 7
    assert cards.labels[cards.labels > 0].tolist() == [0.75, 1, 0.25]


def test_a_made_page_has_a_label_per_block() -> None:
    page = made_page(np.random.default_rng(1), 2)
    assert page.group == 2
    assert page.labels.max() == 1


def test_variants_follow_from_the_seed_and_stay_in_their_groups() -> None:
    pages = [_page() for _ in range(20)]
    first, again = (augment(pages, [3, 5], Shares(plain=0.5, made=0.5, cards=0.5), seed=4) for _ in range(2))
    assert [page.labels.tolist() for page in first] == [page.labels.tolist() for page in again]
    assert len(first) == 30
    assert {page.group for page in first} == {3, 5}
    assert not augment(pages, [3], Shares(plain=0, made=0, cards=0), seed=4)
