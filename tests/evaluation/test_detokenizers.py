"""De-tokenizers: what their text looks like, and that the line of the file comes back whatever it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenized_text import read_sentences, to_cbt, to_one_billion_words, to_ptb

from pipelines.evaluation.detokenizers import DETOKENIZERS

_INVERTIBLE = [name for name, detokenizer in DETOKENIZERS.items() if detokenizer.replacements is None]

# Every rule is in one example at least; `test_every_rule_changes_an_example` asserts it.
_EXAMPLES = {
    "none": [(" the cat 's tail , he said ", " the cat 's tail , he said ")],
    "wikitext": [
        (" the cat 's tail , he said \n", "the cat's tail, he said\n"),
        (" = = Du Fu = = \n", "== Du Fu ==\n"),
        (" = <unk> = ", "= <unk> ="),
        (" \n", "\n"),
        (" the <unk> ; a two @-@ part series : yes ! why ? ", "the <unk>; a two-part series: yes! why?"),
        (" 1 @,@ 000 @.@ 5 m ( 3 @.@ 2 ft ) [ sic ] , £ <unk> ", "1,000.5 m (3.2 ft) [sic], £<unk>"),
        (" At 22 : 00 it was 5 ° , or 6 % . ", "At 22:00 it was 5°, or 6%."),
        (" 2000 – 05 — the north – south line — M ‑ 35 . ", "2000–05—the north – south line—M‑35."),
        (' a " <unk> ring " , he said . " So it is . " ', 'a "<unk> ring", he said. "So it is."'),
        (" St. Ives , No. 5 , in the U.S. ended . ", "St. Ives, No. 5, in the U.S. ended."),
        (" class A . So be it . ", "class A . So be it."),
        (" the Knights ' coach , the Queens ' . ", "the Knights' coach, the Queens'."),
        (" known as ' A ' and ' B ' . ", "known as 'A' and 'B'."),
        (" 40 km / h , the jury ’ s <unk> / <unk> ", "40 km/h, the jury’s <unk>/<unk>"),
    ],
    "ptb": [
        (" no it was n't <unk> 's corp. 's \n", "no it wasn't <unk>'s corp.'s\n"),
        (" i 'd say they 're wo n't and can not and gon na ", "i'd say they're won't and cannot and gonna"),
        (" the companies ' $ N million and c$ N ", "the companies' $N million and c$N"),
        (" N % of # N and N\\/N ", "N% of £N and N/N"),
    ],
    "1bw": [
        ("They don 't know , said O 'Neill 's son .", "They don't know, said O'Neill's son."),
        ('" We <UNK> : yes ; no ! " she said .', '"We <UNK>: yes; no!" she said.'),
        ("It rose 5 % to $ 5 ( £ 3 ) -- or so ?", "It rose 5% to $5 (£3) -- or so?"),
        ('Both gain , " said Daniel .', 'Both gain," said Daniel.'),
        ('He asked : " Why me ?', 'He asked: "Why me?'),
        ('He said : " It rained . "', 'He said: "It rained."'),
        ("a few hours ' ' so-called ' wear and / or www", "a few hours' 'so-called' wear and/or www"),
        ("see http : / / www.example.com now , the jury ’ s", "see http://www.example.com now, the jury’s"),
        ("Sen. Smith of the U.S.", "Sen. Smith of the U.S."),
    ],
    "cbt": [
        ("`` I ca n't go , '' said he ; `` I 'll stay . ''", '"I can\'t go," said he; "I\'ll stay."'),
        ("` Who : ` em ? ' -LRB- or can not -RRB- !", "'Who: ` em?' (or cannot)!"),
        ("`` ` Go , ' he said ! '' -LSB- 50 % of $ 2 -RSB- .", "\"'Go,' he said!\" [50% of $2]."),
        ("He took 'em -- or XXXXX 's -- 1\\/2 .", "He took 'em--or XXXXX's--1/2."),
        ("No -- `` now '' -- I -- ''", 'No--"now"--I--"'),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "text"), [(name, *pair) for name, pairs in _EXAMPLES.items() for pair in pairs]
)
def test_text_of_a_line(name: str, line: str, text: str) -> None:
    assert DETOKENIZERS[name].detokenize(line) == (text, (), 0.0)
    assert DETOKENIZERS[name].retokenize(text, ()) == line


def test_every_rule_changes_an_example() -> None:
    for name, examples in _EXAMPLES.items():
        detokenizer = DETOKENIZERS[name]
        for rule in detokenizer.rules:
            without = replace(detokenizer, rules=tuple(other for other in detokenizer.rules if other != rule))
            assert any(without.detokenize(line).text != text for line, text in examples), (name, rule.name)


@pytest.mark.parametrize("name", _INVERTIBLE)
@given(line=st.text())
def test_any_line_comes_back(name: str, line: str) -> None:
    detokenizer = DETOKENIZERS[name]
    result = detokenizer.detokenize(line)
    assert detokenizer.retokenize(result.text, result.left_out) == line


_TOKENS = (
    "a dogs as St. U.S. U.S I I. 5 1,000 <unk> N 's 't n't can not cannot , . ... ; : ! ? % $ $5 £ # @-@ @,@ @.@ - -- "
    "--- – — ‑ ' '' ` `` \" ( ) [ ] -LRB- -RRB- = == / // \\/ ° ’ http don't 'em '80s a-b a, a. a\" (a) \n"
).split(" ")


@pytest.mark.parametrize("name", _INVERTIBLE)
@given(tokens=st.lists(st.sampled_from(_TOKENS)), edges=st.sampled_from(["", " ", "  "]))
def test_any_tokens_come_back(name: str, tokens: list[str], edges: str) -> None:
    line = edges + " ".join(tokens) + edges
    detokenizer = DETOKENIZERS[name]
    result = detokenizer.detokenize(line)
    assert detokenizer.retokenize(result.text, result.left_out) == line
    assert (result.bits == 0) == (not result.left_out)


def test_the_rule_that_a_line_cannot_invert_is_left_out() -> None:
    detokenizer = DETOKENIZERS["wikitext"]
    rules = len(detokenizer.rules)
    result = detokenizer.detokenize(" a so-called two @-@ part 's end . ")
    assert result.text == "a so-called two @-@ part's end."
    assert result.left_out == ("hyphen",)
    assert result.bits == pytest.approx(2 * math.log2(rules))


def test_several_rules_are_left_out_where_no_single_one_suffices() -> None:
    detokenizer = DETOKENIZERS["wikitext"]
    result = detokenizer.detokenize(" a so-called 5,000 of ( the end . ) ")
    assert result.text == "a so-called 5,000 of (the end.)"
    assert result.left_out == ("number-comma", "hyphen")
    assert result.bits == pytest.approx(
        math.log2(len(detokenizer.rules)) + math.log2(math.comb(len(detokenizer.rules), 2))
    )


def test_line_without_outer_spaces_is_an_exception() -> None:
    assert DETOKENIZERS["wikitext"].detokenize("the cat 's tail , he said")[:2] == (
        "the cat's tail, he said",
        ("edges",),
    )


def test_lossy_variants_replace_words_for_good() -> None:
    assert DETOKENIZERS["wikitext-lossy"].detokenize(" the <unk> 's end . ").text == "the ?'s end."
    assert DETOKENIZERS["ptb-lossy"].detokenize(" <unk> rose $ N to N ").text == "? rose $1 to 1"
    assert [name for name in DETOKENIZERS if name not in _INVERTIBLE] == ["wikitext-lossy", "ptb-lossy"]


@pytest.mark.parametrize("name", _INVERTIBLE)
@pytest.mark.parametrize("unit", ["a", "a.", "a . ", '" ', "s ' ", " -- ", "can not ", "1 @,@ ", "'' ", "= ", " "])
def test_time_is_linear_in_the_length_of_a_line(name: str, unit: str) -> None:
    detokenizer = DETOKENIZERS[name]
    seconds = []
    for characters in (500, 4_000):
        line = (unit * characters)[:characters]
        start = time.process_time()
        result = detokenizer.detokenize(line)
        seconds.append(time.process_time() - start)
        assert detokenizer.retokenize(result.text, result.left_out) == line
    assert seconds[1] < 30 * seconds[0] + 0.05  # 8 times the length; a quadratic pattern takes 64 times as long


def _check_share(name: str, lines: list[str], floor: float) -> None:
    """Assert that all lines come back, that most need no exception, and that the text is shorter than the lines."""
    detokenizer = DETOKENIZERS[name]
    results = [detokenizer.detokenize(line) for line in lines]
    for line, result in zip(lines, results, strict=True):
        assert detokenizer.retokenize(result.text, result.left_out) == line
    assert sum(not result.left_out for result in results) >= floor * len(lines)
    assert sum(len(result.text) for result in results) < 0.975 * sum(map(len, lines))


@pytest.mark.parametrize("split", [pytest.param("valid", marks=pytest.mark.slow), "test"])
def test_lines_of_wikitext_come_back(shared_data: Path, split: str) -> None:
    with (shared_data / "benchmarks" / f"wikitext2-{split}.txt").open(encoding="utf-8", newline="\n") as file:
        lines = list(file)
    assert all(DETOKENIZERS["wikitext"].detokenize(line) == ("\n", (), 0.0) for line in lines if not line.strip())
    # Of the quick one every second.
    step = 2 if split == "test" else 1
    _check_share("wikitext", [line for line in lines if line.strip()][::step], floor=0.998)


@pytest.fixture(scope="module")
def sentences(shared_data: Path) -> list[str]:
    return read_sentences(shared_data, books=3)


@pytest.mark.parametrize(
    ("name", "tokenize"), [("ptb", to_ptb), ("1bw", to_one_billion_words), ("cbt", to_cbt)], ids=["ptb", "1bw", "cbt"]
)
def test_lines_made_from_books_come_back(
    sentences: list[str], name: str, tokenize: Callable[[list[str]], list[str]]
) -> None:
    _check_share(name, tokenize(sentences), floor=0.998)
