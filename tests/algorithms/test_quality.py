"""Statistics and line rules of filters, compared with plain Python that follows the published definitions."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import regex

from pipelines.algorithms.kernels.compilation import kernel
from pipelines.algorithms.quality.lines import LINE_STATISTICS, LineRules, edit_lines
from pipelines.algorithms.quality.statistics import DESCRIBED_BYTES, STATISTICS, describe
from pipelines.algorithms.quality.tokens import character_classes, classify, find_tokens

_TERMINAL = re.compile(r"[.!?。！？।]$")
_WORDS = (
    "the of and that have with be to cats dogs run far well-known don't it's U.S. e.g. Mr. 3.5 10 50% $5 #tag ... "
    '… • - – — ( ) [12] {x} naïve Привет 東京 straße foo/bar http://a.org/b?c=d a,b end. Stop! why? «quote» "said" :) '
    "javascript Lorem ipsum privacy policy terms of use &amp; \ufffd Ã©t \u200b \u2028 \x85"
).split(" ")


@kernel
def _tokenize(text: Any, table: Any, classes: Any, begins: Any, ends: Any) -> Any:
    classify(text, 0, len(text), table, classes)
    return find_tokens(text, classes, begins, ends)


def _tokens(text: str) -> list[str]:
    data = text.encode()
    buffers = [np.empty(len(data) + 1, np.int32) for _ in range(2)]
    classes = np.empty(len(data), np.uint16)
    count = _tokenize(np.frombuffer(data, np.uint8), character_classes(), classes, *buffers)
    return [
        data[begin:end].decode() for begin, end in zip(*(buffer[:count].tolist() for buffer in buffers), strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I can't. He said: ca—n’t!", "I ca n't . He said : ca — n’t !"),
        ("Mr. Smith doesn't, e.g., like it's.", "Mr. Smith does n't , e.g. , like it 's ."),
        ("well-known “U.S. dollars” (50%)...", "well - known “ U.S. dollars ” ( 50 % ) ..."),
        ("50%, 20+ 3-4 foo/bar x=yes a--b", "50 % , 20 + 3 - 4 foo / bar x = yes a -- b"),
        ("$5.00 #tag @me I’ll we’ve", "$ 5.00 # tag @me I ’ll we ’ve"),
        ("End of text.New 1,000 a_b CAN’T", "End of text . New 1,000 a_b CAN’T"),
        ("see http://a.org/b?c=d, Ph.D. (U.S.).", "see http://a.org/b?c=d , Ph.D. ( U.S. ) ."),
        ("dogs' – cats—birds A. B.C. NASA.", "dogs ' – cats — birds A. B.C. NASA ."),
        ("\u3000東京。\u00a0x", "東京 。 x"),
        ("", ""),
    ],
)
def test_tokens_are_those_of_spacy(text: str, tokens: str) -> None:
    assert _tokens(text) == tokens.split(" " if tokens else None)


def _repeats(parts: list[str]) -> tuple[int, int]:
    seen, count, characters = set(), 0, 0
    for part in parts:
        if part in seen:
            count, characters = count + 1, characters + len(part)
        seen.add(part)
    return count, characters


def _repeated_ngrams(words: list[str], size: int) -> int:
    seen, characters, first = set(), 0, 0
    while first <= len(words) - size:
        ngram = tuple(words[first : first + size])
        if ngram in seen:
            characters, first = characters + sum(map(len, ngram)), first + size
        else:
            seen.add(ngram)
            first += 1
    return characters


def _described(text: str) -> dict[str, float]:
    """The statistics but those of characters, as the papers and datatrove define them."""
    words = _tokens(text)
    more = [word for word in words if any(not regex.match(r"[\p{P}\p{S}\p{C}]", character) for character in word)]
    lines, size = text.splitlines(), len(text)
    paragraphs = re.split(r"\n{2,}", text.strip())
    gopher_lines = re.split(r"\n+", text)
    full = [line for line in text.split("\n") if line.strip()]
    values = {
        "characters": size,
        "words": len(more),
        "word_length": sum(map(len, more)) / max(1, len(more)),
        "hashes_per_word": text.count("#") / len(words),
        "ellipses_per_word": (text.count("...") + text.count("…")) / len(words),
        "bullet_lines": sum(line.lstrip().startswith(("•", "-")) for line in lines) / len(lines),
        "ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in lines) / len(lines),
        "alphabetic_words": sum(any(map(str.isalpha, word)) for word in words) / len(words),
        "stop_words": len({*words} & {*"the be to of and that have with".split()}),
        "terminal_lines": sum(bool(_TERMINAL.search(line)) for line in full) / max(1, len(full)),
        "short_lines": sum(len(line) <= 30 for line in full) / max(1, len(full)),
        "repeated_characters": _repeats(full)[1] / max(1, len(text.replace("\n", ""))),
        "newlines_per_word": text.count("\n") / len(words),
    }
    for name, parts in (("paragraph", paragraphs), ("line", gopher_lines)):
        count, characters = _repeats(parts)
        values |= {f"duplicate_{name}s": count / len(parts), f"duplicate_{name}_characters": characters / size}
    for length in (2, 3, 4):
        ngrams = Counter(" ".join(words[start : start + length]) for start in range(len(words) - length + 1))
        top = ngrams.most_common(1)
        values[f"top_{length}_gram"] = len(top[0][0]) * top[0][1] / size if top else 0
    for length in range(5, 11):
        values[f"duplicate_{length}_grams"] = _repeated_ngrams(words, length) / size
    return values


def _random_text(draw: random.Random) -> str:
    vocabulary = draw.sample(_WORDS, draw.randint(3, len(_WORDS)))
    lines = [" ".join(draw.choices(vocabulary, k=draw.randint(0, 12))) for _ in range(draw.randint(1, 30))]
    lines += draw.choices(lines, k=draw.randint(0, 10))
    return draw.choice(["", "\n", " "]) + draw.choice(["\n", "\n\n"]).join(lines) + draw.choice(["", "\n", "\n\n"])


def _check(texts: list[str]) -> None:
    rows = describe(pa.array(texts))
    names = list(STATISTICS)
    for text, row in zip(texts, rows, strict=True):
        for name, value in _described(text).items():
            assert row[names.index(name)] == pytest.approx(value), (name, text)


def test_statistics_of_random_texts() -> None:
    draw = random.Random(1)
    _check([text for _ in range(300) if _tokens(text := _random_text(draw))])


def test_statistics_of_real_text(shared_data: Path) -> None:
    text = (shared_data / "benchmarks" / "wikitext2-valid.txt").read_text(encoding="utf-8")
    _check([text[start : start + 20_000] for start in range(0, 200_000, 20_000)])


def test_statistics_of_nothing_and_of_slices() -> None:
    assert describe(pa.array([], pa.string())).shape == (0, len(STATISTICS))
    assert not describe(pa.array(["", "x"]))[0].any()
    _check(["the\x00 of", "of\x00\x00\x00\x00\x00\x00more be", "be"])
    texts = pa.array(["first text", "second", "third " * 9])
    assert (describe(texts[1:]) == describe(texts)[1:]).all()
    assert (describe(texts.cast(pa.large_string())) == describe(texts)).all()


def test_each_statistic_is_the_same_without_the_others() -> None:
    draw = random.Random(2)
    texts = pa.array([_random_text(draw) + "…\n- \u00c3\u00bc # 1" for _ in range(20)])
    rows = describe(texts)
    assert rows.any(axis=0).all()
    for column, name in enumerate(STATISTICS):
        assert (describe(texts, [name])[:, column] == rows[:, column]).all(), name


def test_letters_and_wrong_encodings_are_counted() -> None:
    names = list(STATISTICS)
    rows = describe(
        pa.array(["ab 12", "caf\u00c3\u00a9 \u00e2\u20ac\u2122s \ufffd", "\u00c2\u00a320 café naïve", "ÃO Â\u00e3"])
    )
    assert rows[0, names.index("letters")] == 0.5
    damaged = rows[:, names.index("damaged_characters")] * rows[:, 0]
    assert np.round(damaged).tolist() == [0, 3, 1, 0]


def _edited(text: str, rules: LineRules) -> tuple[str, dict[str, float]]:
    """C4's rules of lines, as in c4_utils.py of tensorflow_datasets and in datatrove."""
    kept, values = [], dict.fromkeys(LINE_STATISTICS, 0.0)
    for line in text.splitlines():
        line = line.strip()
        words = line.split()
        line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line)
        lower = line.lower()
        is_kept = all(len(word) <= rules.max_word_length for word in words) and len(words) >= rules.min_words
        if rules.end_of_sentence:
            is_kept &= line.endswith((".", "?", "!", '"', "'")) and not line.endswith("...")
        if is_kept:
            values["lorem_ipsum"] = max(values["lorem_ipsum"], float("lorem ipsum" in lower))
            if "javascript" not in lower and "lorem ipsum" not in lower:
                values["curly_brackets"] = max(values["curly_brackets"], float("{" in line))
            is_kept = not any(phrase in lower for phrase in ("lorem ipsum", "javascript", *rules.phrases))
        if is_kept:
            kept.append(line)
        values["removed_lines"] += not is_kept
    return "\n".join(kept), values


@pytest.mark.parametrize("end_of_sentence", [True, False])
def test_lines_are_removed_as_by_c4(end_of_sentence: bool) -> None:
    draw = random.Random(2)
    rules = LineRules(end_of_sentence, max_word_length=8, phrases=("privacy policy", "terms of use"))
    texts = ["", "\n\n", *(_random_text(draw) for _ in range(300))]
    edited, statistics = edit_lines(pa.array(texts), rules)
    removed = 0
    for text, result, row in zip(texts, edited.to_pylist(), statistics, strict=True):
        expected, values = _edited(text, rules)
        # Where a mark such as [12] was, white space at the ends of a line goes, too.
        assert [line.strip() for line in result.split("\n")] == [line.strip() for line in expected.split("\n")], text
        row_values = dict(zip(LINE_STATISTICS, row.tolist(), strict=True))
        assert {name: row_values[name] for name in row_values if name != "sentences"} == {
            name: value for name, value in values.items() if name != "sentences"
        }, text
        removed += values["removed_lines"]
    assert removed > 1000


def test_sentences_are_counted_in_what_is_left() -> None:
    first = 'He left. "Go!" she said. (Yes.) Ok... well. U.S. troops vs. them. 3.5 is it.'
    edited, statistics = edit_lines(pa.array([f"{first}\nNo end here\nOne more sentence. And?"]), LineRules())
    assert edited.to_pylist() == [f"{first}\nOne more sentence. And?"]
    assert statistics.tolist() == [[1, 9, 0, 0]]


@pytest.mark.parametrize("character", ["a", "é", "。", "😀"])
def test_only_the_beginning_of_a_long_text_is_described(character: str) -> None:
    text = "?" + character * (DESCRIBED_BYTES // len(character.encode())) + " other words" * 9
    beginning = text.encode()[:DESCRIBED_BYTES].decode(errors="ignore")
    long, short = describe(pa.array([text, beginning]))
    assert long.tolist() == short.tolist()


def test_apostrophes_in_a_long_chunk_take_linear_time() -> None:
    assert _tokens("x'y'" * 500_000) == ["x'y'" * 499_999 + "x'y", "'"]


def test_a_text_without_words_has_no_statistics_of_words() -> None:
    row = dict(zip(STATISTICS, describe(pa.array([" \n\t\n"]))[0].tolist(), strict=True))
    assert {name for name, value in row.items() if value} == {"characters"}
