"""Variants of pages for training: plain markup, filler text, and cards that recommend other articles.

Annotated pages are real ones with classes, menus and footers. Pages without them, and pages whose side columns repeat
the titles and excerpts of other articles in a script that is rare in the collections, are made here.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.extractor.pages import LabelledPage
from pipelines.algorithms.blocks import segmentation as seg
from pipelines.algorithms.blocks.markup import TAGS
from pipelines.algorithms.blocks.page import parse_page

Random = np.random.Generator
Flags = npt.NDArray[np.bool_]

_WRAPPERS = [TAGS[name] for name in ("div", "section", "article", "main", "aside", "center", "ul", "figure", "header")]


def keep_blocks(page: LabelledPage, kept: Flags, dissolved: Flags, has_tokens: bool) -> LabelledPage:
    """Return a page with some of its blocks, without the `dissolved` elements, which pass on what they contain."""
    segments = page.page.segments
    declaring = int(np.argmax(segments.tags == TAGS["body"])) + page.page.descriptions + 1
    used = np.arange(len(segments.parents)) < declaring
    own = segments.blocks[kept, seg.ELEMENT]
    above = used.copy()
    above[own] = True
    for element in range(len(above) - 1, 0, -1):
        above[segments.parents[element]] |= above[element]
    used |= above & ~dissolved
    used[own] = True
    nearest = np.arange(len(used))
    for element in np.flatnonzero(~used).tolist():
        nearest[element] = nearest[segments.parents[element]]
    numbers = (np.cumsum(used) - 1)[nearest].astype(np.int32)
    blocks = segments.blocks[kept].copy()
    blocks[:, seg.ELEMENT] = numbers[own]
    blocks[:, seg.FIRST_WORD] = np.cumsum(blocks[:, seg.WORDS]) - blocks[:, seg.WORDS]
    words = np.repeat(kept, segments.blocks[:, seg.WORDS])
    parents = segments.parents[used]
    parents[1:] = numbers[parents[1:]]
    counts = np.diff(segments.token_starts) * (has_tokens | (np.arange(len(used)) < declaring))
    tokens = segments.tokens[np.repeat(used & (counts > 0), np.diff(segments.token_starts))]
    changed = segments._replace(
        blocks=blocks,
        words=segments.words[words],
        word_flags=segments.word_flags[words],
        parents=parents,
        tags=segments.tags[used],
        flags=segments.flags[used],
        token_starts=np.concatenate([[0], np.cumsum(counts[used])]).astype(np.int32),
        tokens=tokens,
        tag_counts=np.bincount(segments.tags[used], minlength=256).astype(np.int32),
    )
    return dataclasses.replace(page, page=page.page._replace(segments=changed), labels=page.labels[kept])


def plain_page(page: LabelledPage, random: Random) -> LabelledPage:
    """Return a page without classes, often without wrappers and what is around its content, or cut to a few blocks."""
    segments = page.page.segments
    count, content = len(page.labels), np.flatnonzero(page.labels > 0.5)
    kept = np.ones(count, np.bool_)
    if page.kind is not None and len(content) and random.random() < 0.85:
        first, last = int(content[0]), int(content[-1])
        if random.random() < 0.7:
            start = int(random.integers(len(content)))
            chosen = content[start : start + int(random.integers(3, 20))]
            first, last = int(chosen[0]), int(chosen[-1])
        around = int(random.choice([0, 0, 2, 6]))
        numbers = np.arange(count)
        kept = (numbers >= first - around) & (numbers <= last + around)
        if random.random() < 0.5:
            kept &= (page.labels > 0.5) | (numbers < first) | (numbers > last)
    wrappers = np.isin(segments.tags, _WRAPPERS)
    dissolved = wrappers & (random.random(len(wrappers)) < random.choice([0, 0.5, 0.9]))
    plain = keep_blocks(page, kept, dissolved, has_tokens=False)
    if random.random() < 0.25:
        changed = plain.page.segments
        tags = np.where(changed.tags == TAGS["p"], TAGS["div"], changed.tags).astype(np.uint8)
        counts = np.bincount(tags, minlength=256).astype(np.int32)
        changed = changed._replace(tags=tags, tag_counts=counts)
        plain = dataclasses.replace(plain, page=plain.page._replace(segments=changed))
    return plain


def insert(page: LabelledPage, added: LabelledPage, parent: int) -> LabelledPage:
    """Return a page with the body of another one at the end of one of its elements that has blocks."""
    old, new = page.page.segments, added.page.segments
    inside = np.zeros(len(old.parents), np.bool_)
    inside[parent] = True
    for element in range(parent + 1, len(inside)):
        inside[element] = inside[old.parents[element]]
    at = int(np.flatnonzero(inside)[-1]) + 1
    block_at = int(np.flatnonzero(inside[old.blocks[:, seg.ELEMENT]])[-1]) + 1
    word_at = int(old.blocks[:block_at, seg.WORDS].sum())
    body = int(np.argmax(new.tags == TAGS["body"]))
    shifted = np.where(old.parents >= at, old.parents + len(new.parents) - body - 1, old.parents)
    parents = np.where(new.parents[body + 1 :] == body, parent, new.parents[body + 1 :] + at - body - 1)
    before, blocks = old.blocks.copy(), new.blocks.copy()
    before[:, seg.ELEMENT] += (before[:, seg.ELEMENT] >= at) * (len(new.parents) - body - 1)
    before[block_at:, seg.FIRST_WORD] += len(new.words)
    blocks[:, seg.ELEMENT] += at - body - 1
    blocks[:, seg.FIRST_WORD] += word_at
    blocks[:, [seg.START, seg.END]] += len(old.text)

    def joined(first: npt.NDArray[Any], second: npt.NDArray[Any], position: int) -> npt.NDArray[Any]:
        return np.concatenate([first[:position], second, first[position:]])

    counts = joined(np.diff(old.token_starts), np.diff(new.token_starts)[body + 1 :], at)
    token_at = int(old.token_starts[at])
    changed = old._replace(
        text=np.concatenate([old.text, new.text]),
        blocks=joined(before, blocks, block_at),
        words=joined(old.words, new.words, word_at),
        word_flags=joined(old.word_flags, new.word_flags, word_at),
        parents=joined(shifted, parents, at).astype(np.int32),
        tags=joined(old.tags, new.tags[body + 1 :], at),
        flags=joined(old.flags, new.flags[body + 1 :], at),
        token_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        tokens=joined(old.tokens, new.tokens[new.token_starts[body + 1] :], token_at),
        tag_counts=old.tag_counts + new.tag_counts,
    )
    labels = joined(page.labels, added.labels, block_at)
    return dataclasses.replace(page, page=page.page._replace(segments=changed), labels=labels)


# Words of made-up text. Of Chinese and Japanese, frequent characters.
_LATIN = (
    "aut vel quod nulla ipsa dolor rerum fuga porro nihil magni odio sit quam nemo illo sequi omnis minus totam harum "
    "vitae quasi modi natus eaque beatae iure saepe alias error optio labore velit autem earum quidem facere tempora "
    "animi possimus voluptas ducimus corrupti deleniti provident similique mollitia laborum cumque impedit"
).split()
_SYLLABLES = "ba ken ti lor mu sha ver don pi gre lan osk ti ra zel mor an est hin fa ul ne wo ritz ska jo".split()
_CHINESE = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分"
    "对成会可主发年动同工也能下过子说产种面而方后多定行学法所民得经"
)
_JAPANESE = (
    "のにはをたがでてとしれさいるこなかもらすりまっよくだ日本人大年時間開"
    "発方法使用場合設定実行結果確認作成プログラムコードデータサーバー"
)


def _latin(random: Random, size: int) -> str:
    return " ".join(random.choice(_LATIN, size).tolist())


def _invented(random: Random, size: int) -> str:
    return " ".join("".join(random.choice(_SYLLABLES, int(random.integers(1, 4))).tolist()) for _ in range(size))


def _characters(alphabet: str) -> Callable[[Random, int], str]:
    return lambda random, size: "".join(random.choice(list(alphabet), 2 * size).tolist())


@dataclasses.dataclass(frozen=True)
class _Language:
    words: Callable[[Random, int], str]
    comma: str
    stop: str
    related: Sequence[str]
    counts: Sequence[str]
    date: str


_RELATED = ("Related posts", "You may also like", "More articles", "Recommended")
_LANGUAGES = (
    _Language(_latin, ", ", ". ", _RELATED, ("{} views", "{} min read", "{} comments"), "{}-{:02}-{:02}"),
    _Language(_invented, ", ", ". ", _RELATED, ("{} views", "{} likes"), "{}/{}/{}"),
    _Language(
        _characters(_CHINESE), "，", "。", ("相关推荐", "相关文章", "猜你喜欢", "热门文章"),
        ("阅读 {}", "{} 阅读", "{}人浏览", "点赞 {}", "评论 {}"), "{}-{:02}-{:02}",
    ),
    _Language(
        _characters(_JAPANESE), "、", "。", ("関連記事", "おすすめ記事", "人気の記事", "あわせて読みたい"),
        ("{} 閲覧", "いいね {}", "{} PV", "コメント {}"), "{}年{}月{}日",
    ),
)  # fmt: skip


def _title(random: Random, language: _Language) -> str:
    return language.words(random, int(random.integers(2, 9))).capitalize()


def _paragraph(random: Random, language: _Language, longest: int) -> str:
    text, size = "", int(random.integers(3, longest))
    while size > 0:
        sentence = language.words(random, min(size, int(random.integers(3, 16)))).capitalize()
        if random.random() < 0.5:
            sentence += language.comma + language.words(random, int(random.integers(2, 9)))
        text += sentence + language.stop
        size -= 15
    return text.strip()


def _number(random: Random) -> int:
    return int(random.integers(1, 10 ** int(random.integers(1, 6))))


def _code(random: Random) -> str:
    names = random.choice(_SYLLABLES, 12).tolist()
    lines = [f"{names[line]}_{names[line + 1]} = {names[line + 2]}({_number(random)})" for line in range(8)]
    return "\n".join(lines[: int(random.integers(2, 9))])


class _Builder:
    """HTML whose pieces of text are one block each, and the label of each."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.labels: list[float] = []

    def add(self, tag: str, text: str, label: float, inner: str = "{}") -> None:
        self.parts.append(f"<{tag}>{inner.format(html.escape(text))}</{tag}>")
        self.labels.append(label)

    def page(self, title: str, group: int, kind: str = "article") -> LabelledPage:
        document = f"<html><head><title>{title}</title></head><body>{''.join(self.parts)}</body></html>"
        parsed = parse_page(document)
        labels = np.array(self.labels, np.float32)
        return LabelledPage("made", Path(), None, parsed, labels, kind=kind, group=group)


def _add_cards(builder: _Builder, random: Random, language: _Language) -> None:
    """Add like cards with the title, excerpt and date of other articles."""
    outer, card, field = [str(random.choice(tags)) for tags in (("div", "ul", "section"), ("div", "li"), ("div", "p"))]
    if outer != "ul" and card == "li":
        card = "div"
    heading, title = str(random.choice(["div", "h3", "h4", "p"])), str(random.choice(["div", "h3", "h4", "h5", "p"]))
    has_excerpt, has_date, has_count = (random.random(3) < (0.75, 0.7, 0.5)).tolist()
    titles_link, longest = bool(random.random() < 0.7), int(random.integers(20, 70))
    if random.random() < 0.6:
        builder.add(heading, str(random.choice(language.related)), 0)
    builder.parts.append(f"<{outer}>")
    for _ in range(int(random.integers(3, 15))):
        builder.parts.append(f"<{card}>")
        builder.add(title, _title(random, language), 0, "<a>{}</a>" if titles_link else "{}")
        if has_excerpt:
            text = _paragraph(random, language, longest)
            builder.add(field, text + str(random.choice(["...", "", "…"])), 0, str(random.choice(["{}", "<a>{}</a>"])))
        if has_date:
            date = language.date.format(*(int(random.integers(*ends)) for ends in ((2008, 2026), (1, 13), (1, 29))))
            builder.add(field, date, 0)
        if has_count:
            builder.add("div", str(random.choice(language.counts)).format(_number(random)), 0)
        builder.parts.append(f"</{card}>")
    builder.parts.append(f"</{outer}>")


# Real pages with less text are mostly shells and messages, which are not content.
_MIN_CHARACTERS = 200


def _add_text(builder: _Builder, random: Random, language: _Language) -> None:
    """Add a handful of alike paragraphs, which may repeat each other, with a few headings, lists and code."""
    paragraph = str(random.choice(["p", "p", "div", "section", "article"]))
    longest, repeats = int(random.choice([8, 25, 60, 120])), bool(random.random() < 0.3)
    headings, others = random.choice([0, 0.25]), random.choice([0, 0, 0.2])
    texts: list[str] = []
    rest = int(random.integers(1, 14))
    while rest > 0 or sum(map(len, texts)) < _MIN_CHARACTERS:
        rest -= 1
        if random.random() < headings:
            builder.add(str(random.choice(["h2", "h3"])), _title(random, language), 1)
        texts.append(str(random.choice(texts)) if texts and repeats else _paragraph(random, language, longest))
        tag = paragraph if random.random() < 0.9 else "p"
        inner = str(random.choice(["{}", "{}", "{} <a>aut vel</a>", "<span>{}</span>"]))
        builder.add(tag, texts[-1], 1, inner)
        if random.random() < others:
            builder.add("pre", _code(random), 1)
        elif random.random() < others:
            builder.parts.append("<ul>")
            for _ in range(int(random.integers(2, 6))):
                builder.add("li", _title(random, language), 1)
            builder.parts.append("</ul>")


def made_page(random: Random, group: int) -> LabelledPage:
    """Return a page of made-up text: a few paragraphs in plain markup, which are all content, or cards after them."""
    language = _LANGUAGES[int(random.integers(len(_LANGUAGES)))]
    is_blog = bool(random.random() < 0.5)
    builder, title = _Builder(), _title(random, language)
    wrapper = str(random.choice(["div", "article", "main", "section", "center"]))
    depth = int(random.integers(3, 8)) if is_blog else int(random.integers(0, 3))
    builder.parts.append(f"<{wrapper}>" * depth)
    if random.random() < 0.6:
        # Whether a title belongs to the text differs between annotations.
        builder.add("h1", title, 0.5)
    for _ in range(int(random.integers(2, 5)) if is_blog else 1):
        _add_text(builder, random, language)
    if is_blog:
        closed = int(random.integers(0, depth))
        builder.parts.append(f"</{wrapper}>" * closed)
        for _ in range(int(random.integers(1, 3))):
            _add_cards(builder, random, language)
        depth -= closed
    builder.parts.append(f"</{wrapper}>" * depth)
    return builder.page(title if random.random() < 0.7 else "", group)


def with_cards(page: LabelledPage, random: Random) -> LabelledPage:
    """Return a page with cards of other articles after its content, or beside it."""
    content = np.flatnonzero(page.labels > 0.5)
    if not len(content):
        return page
    builder = _Builder()
    _add_cards(builder, random, _LANGUAGES[int(random.integers(len(_LANGUAGES)))])
    parents = page.page.segments.parents
    element = int(page.page.segments.blocks[content[-1], seg.ELEMENT])
    above = [element := int(parents[element]) for _ in range(int(random.integers(1, 5))) if parents[element] > 2]
    return insert(page, builder.page("", page.group), above[-1]) if above else page


@dataclasses.dataclass(frozen=True)
class Shares:
    """How many variants and made-up pages are added, relative to the number of pages."""

    plain: float = 0.3
    made: float = 0.1
    cards: float = 0.15


def augment(pages: Sequence[LabelledPage], groups: Sequence[int], shares: Shares, seed: int) -> list[LabelledPage]:
    """Return variants of some of the pages, and made-up pages, each in one of the groups."""
    random = np.random.default_rng(seed)

    def drawn(share: float) -> list[LabelledPage]:
        return [pages[number] for number in random.permutation(len(pages))[: round(share * len(pages))]]

    variants = [plain_page(page, random) for page in drawn(shares.plain)]
    variants += [with_cards(page, random) for page in drawn(shares.cards)]
    variants += [made_page(random, int(random.choice(groups))) for _ in range(round(shares.made * len(pages)))]
    return [page for page in variants if len(page.labels)]
