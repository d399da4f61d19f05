"""Metrics against cases by hand, plain forms of the published rules, and direct calls of the libraries."""

from __future__ import annotations

import math
import random
import socket
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import WebtextError
from pipelines.evaluation import rouge
from pipelines.evaluation.metrics import (
    Bleu,
    Metric,
    best_threshold,
    bootstrap_error,
    coqa_scores,
    matthews_correlation,
    metric_value,
    normalize_answer,
    roc_area,
    squad_scores,
    summarize,
)
from pipelines.evaluation.rouge import check_rouge, rouge_scores

_ANSWERS = st.lists(
    st.sampled_from(["a", "The", "an", "cat", "Cat.", "dog", "don't", "é", "É", "“x”", "漢", ",", "", "\u00a0", "no"]),
    max_size=5,
).map(" ".join)
_WORDS = "the a cat cats sat sitting on mat , . ran running it's 1,000 Über naïve dog ! ( ) well-known".split()


def _sentences(seed: int, count: int, shortest: int = 4) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(_WORDS, k=generator.randint(shortest, 25))) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Cat, a dog & an Owl!", "cat dog owl"),
        ("don't", "dont"),
        ("J. K. Rowling", "j k rowling"),
        ("1,000", "1000"),
        ("theatre an-other another", "theatre another another"),
        ("\u201cÉcole\u201d\u00a0DES Chartes", "\u201cécole\u201d des chartes"),
        ("漢字 the 字", "漢字 字"),
        ("The a", ""),
        ("", ""),
        (" \t\n", ""),
        ("?!", ""),
    ],
)
def test_answers_are_normalized(text: str, normalized: str) -> None:
    assert normalize_answer(text) == normalized


def test_exact_match_accepts_any_gold() -> None:
    assert squad_scores("the Charles Darwin.", ["Darwin", "Charles Darwin"])[0]
    assert not squad_scores("Darwin's", ["Charles Darwin", "Darwin"])[0]
    assert squad_scores("A", [""])[0]
    assert not squad_scores("", ["yes"])[0]


@pytest.mark.parametrize(
    ("prediction", "golds", "f1"),
    [
        ("the cat sat", ["cat"], 2 / 3),
        ("cat cat dog", ["cat dog dog"], 2 / 3),
        ("cat", ["dog", "a black cat"], 2 / 3),
        ("Une École", ["école"], 2 / 3),
        ("red", ["blue"], 0.0),
        ("", ["blue"], 0.0),
        ("blue", [""], 0.0),
        ("", [""], 1.0),
        ("the", ["An!"], 1.0),
    ],
)
def test_f1_by_hand(prediction: str, golds: list[str], f1: float) -> None:
    assert squad_scores(prediction, golds)[1] == pytest.approx(f1)


def _plain_coqa(prediction: str, golds: list[str]) -> tuple[float, float]:
    """Every gold answer is left out in turn, and precision and recall are counted word by word."""

    def exact(gold: str) -> float:
        return 1.0 if normalize_answer(gold) == normalize_answer(prediction) else 0.0

    def f1(gold: str) -> float:
        rest, words = normalize_answer(gold).split(), normalize_answer(prediction).split()
        if not rest or not words:
            return 1.0 if rest == words else 0.0
        length, shared = len(rest), 0
        for word in words:
            if word in rest:
                rest.remove(word)
                shared += 1
        precision, recall = shared / len(words), shared / length
        return 2 * precision * recall / (precision + recall) if shared else 0.0

    others = [golds[:i] + golds[i + 1 :] for i in range(len(golds))] if len(golds) > 1 else [golds]
    return mean(max(map(exact, rest)) for rest in others), mean(max(map(f1, rest)) for rest in others)


@given(_ANSWERS, st.lists(_ANSWERS, min_size=1, max_size=5))
def test_coqa_leaves_every_gold_out_once(prediction: str, golds: list[str]) -> None:
    assert coqa_scores(prediction, golds) == pytest.approx(_plain_coqa(prediction, golds), abs=1e-12)
    assert coqa_scores(prediction, golds)[1] <= squad_scores(prediction, golds)[1] + 1e-12


def test_coqa_by_hand() -> None:
    # "white" is left out once; the best of the others is then "white cat" with 2 / 3.
    golds = ["white", "white cat", "grey", "black"]
    assert coqa_scores("White", golds) == pytest.approx((3 / 4, (3 + 2 / 3) / 4))
    assert coqa_scores("White", ["white"]) == (1.0, 1.0)
    assert coqa_scores("White", ["white", "white", "no"]) == (1.0, 1.0)


def test_matthews_correlation() -> None:
    # 6 hits, 3 rejections, 1 alarm, 2 misses: (6 * 3 - 1 * 2) / sqrt(7 * 8 * 4 * 5).
    assert matthews_correlation(6, 7, 8, 12) == pytest.approx(16 / 1120**0.5)
    assert matthews_correlation(8, 8, 8, 12) == 1.0
    assert matthews_correlation(0, 4, 8, 12) == -1.0
    assert matthews_correlation(8, 12, 8, 12) == 0.0
    generator = np.random.default_rng(1)
    first, second = generator.random(5000) < 0.3, generator.random(5000) < 0.4
    correlation = matthews_correlation((first & second).sum(), second.sum(), first.sum(), 5000)
    assert correlation == pytest.approx(np.corrcoef(first, second)[0, 1])


def test_the_best_threshold_is_that_of_trying_all() -> None:
    generator = np.random.default_rng(2)
    for _ in range(50):
        golds, scores = generator.random(30) < 0.6, generator.integers(0, 8, 30).astype(float)
        tried = {}
        for threshold in set(scores.tolist()):
            predicted = scores >= threshold
            tried[threshold] = float(
                matthews_correlation((golds & predicted).sum(), predicted.sum(), golds.sum(), len(golds))
            )
        threshold, correlation = best_threshold(golds, scores)
        assert correlation == pytest.approx(max(tried.values()))
        assert tried[threshold] == pytest.approx(correlation)


def test_roc_area() -> None:
    assert roc_area([True, True, False], [0.9, 0.4, 0.4]) == 0.75
    assert roc_area([False, True], [0.1, 0.2]) == 1.0
    assert math.isnan(roc_area([True, True], [0.1, 0.2]))
    generator = np.random.default_rng(2)
    golds, scores = generator.random(200) < 0.4, generator.integers(0, 20, 200)
    pairs = [(a > b) + (a == b) / 2 for a in scores[golds] for b in scores[~golds]]
    assert roc_area(golds, scores) == pytest.approx(mean(pairs))


@pytest.mark.parametrize("references", [1, 3])
def test_bleu_is_that_of_sacrebleu(references: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    direct = sacrebleu.BLEU()
    bleu = Bleu()
    # The last ten are the first gold answers without their first word.
    predictions = [*_sentences(1, 30), *(text.partition(" ")[2] for text in _sentences(2, 40)[30:]), "", "cat"]
    streams = [[*_sentences(seed, 40), "a dog", ""] for seed in range(2, 2 + references)]
    golds = list(zip(*streams, strict=True))
    statistics = np.array([bleu.statistics(text, answers) for text, answers in zip(predictions, golds, strict=True)])
    assert statistics.shape == (42, 10)
    expected = direct.corpus_score(predictions, streams)
    assert 1 < expected.score < 99
    assert bleu.score(statistics.sum(axis=0)) == expected.score
    assert bleu.signature(references) == str(direct.get_signature())
    # Every sentence as a corpus of its own, where some orders have no match.
    rows = zip(predictions, golds, strict=True)
    alone = [direct.corpus_score([text], [[gold] for gold in answers]).score for text, answers in rows]
    assert [bleu.score(row) for row in statistics] == alone


def test_bleu_has_a_bootstrap_error() -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    bleu, golds = Bleu(), _sentences(3, 60)
    predictions = golds[:30] + _sentences(4, 30)
    rows = np.array([bleu.statistics(text, [gold]) for text, gold in zip(predictions, golds, strict=True)])
    score, error = bootstrap_error(rows, range(60), lambda sample: bleu.score(sample.sum(axis=0)))
    assert score == sacrebleu.corpus_bleu(predictions, [golds]).score
    # The same by copies of the examples, scored from their text.
    generator = random.Random(5)
    draws = [generator.choices(range(60), k=60) for _ in range(150)]
    scores = [sacrebleu.corpus_bleu([predictions[i] for i in draw], [[golds[i] for i in draw]]).score for draw in draws]
    assert error == pytest.approx(np.std(scores), rel=0.15)


def test_rouge_is_that_of_rouge_score_if_stems_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed")
    direct = scorer.RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    summaries = ["\n".join(_sentences(seed, 3)) for seed in range(20)] + ["", "\n", "漢字"]
    golds = ["\n".join(_sentences(seed, 4)) for seed in range(100, 123)]

    def refuse(*arguments: Any) -> None:
        raise AssertionError("rouge-score uses the network")

    monkeypatch.setattr(socket, "socket", refuse)
    rouge._rouge_scorer.cache_clear()
    for summary, gold in zip(summaries, golds, strict=True):
        expected = {name: score.fmeasure for name, score in direct.score(gold, summary).items()}
        assert rouge_scores(summary, [gold]) == expected
    both = rouge_scores(summaries[0], golds[:2])
    alone = [rouge_scores(summaries[0], [gold]) for gold in golds[:2]]
    assert both == {name: max(scores[name] for scores in alone) for name in both}


@pytest.mark.parametrize(
    ("prediction", "gold", "figures"),
    [
        (
            "He said that the children were happier; they had taken the best of it.",
            "The child says they take what is good and be happy.",
            (0.4, 0.08695, 0.32),
        ),
        (
            "The lions are seen eating meat .\nThey ran from the cage on Monday .",
            "Lions ate meat in a cage .\nVideo saw them running on most days .",
            (0.30769, 0, 0.30769),
        ),
        (
            "Parliament's statement: the 3,000 documents had an occasional element of news.",
            "A new document states elements of parliamentary occasions in 3000 words",
            (0.41667, 0.09091, 0.25),
        ),
        (
            "İstanbul's K2 café, well-known in the 1990s -lrb- and before -rrb-",
            "The cafe K2 of Istanbul was known as well in the 1990 s ( before )",
            (0.59259, 0.16, 0.44444),
        ),
        (
            "Trials began. Women wore gloves.\nMice, geese and oxen were used.",
            "He was trying one glove.\nA woman used a mouse and a goose; an ox began the trial.",
            (0.41379, 0, 0.27586),
        ),
        ("", "No words.", (0, 0, 0)),
    ],
)
def test_rouge_is_that_of_rouge_155(prediction: str, gold: str, figures: tuple[float, ...]) -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    # What ROUGE-1.5.5.pl -m -n 2 -d prints, which rounds twice.
    assert list(rouge_scores(prediction, [gold]).values()) == pytest.approx(figures, abs=1.1e-5)


def test_rouge_has_the_stems_of_rouge_155() -> None:
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    equal = "said say, news new, best well, element elements, dying die, used us, taken taking, children child, were be"
    equal += ", document documental, occasional occasion, parliament parliam, seen see, they thei, wolves wolf"
    other = "best good, statement state, occasional occas, geology geologist, agreement agree, was be, saw see"
    for pairs, score in ((equal, 1.0), (other, 0.0)):
        for first, second in map(str.split, pairs.split(", ")):
            assert rouge_scores(first, [second])["rouge1"] == score, (first, second)


def test_rouge_lsum_is_computed_by_sentence() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed")
    # The sentences of the article's lead are those of the summary in another order: by sentence all 8 words match, in
    # one line only the 5 of the longer sentence stay in sequence.
    lead = ["Rain fell in Paris today.", "Trains stopped early."]
    summary = [lead[1], lead[0]]
    by_line = rouge_scores("\n".join(lead), ["\n".join(summary)])
    in_one_line = rouge_scores(" ".join(lead), [" ".join(summary)])
    assert by_line["rougeLsum"] == 1.0
    assert in_one_line["rougeLsum"] == 5 / 8
    direct = scorer.RougeScorer(["rougeL"], use_stemmer=True).score(" ".join(summary), "\n".join(lead))
    assert in_one_line["rougeLsum"] == direct["rougeL"].fmeasure
    assert by_line["rouge1"] == in_one_line["rouge1"] == 1.0


def test_missing_libraries_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: None)
    rouge._rouge_scorer.cache_clear()
    monkeypatch.setattr("pipelines.extras.distributions", lambda name: [])
    command = r"; run: pip install 'webtext-kit\[evaluate\]'"
    for call in (check_rouge, lambda: rouge_scores("a cat", ["a cat"])):
        with pytest.raises(WebtextError, match=f"ROUGE needs rouge-score and py-rouge{command}"):
            call()
    with pytest.raises(WebtextError, match=f"BLEU needs sacrebleu{command}"):
        Bleu()
    # Another package has the module `rouge`, too.
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: name)
    Bleu()
    with pytest.raises(WebtextError, match=f"ROUGE needs py-rouge{command}"):
        check_rouge()


def test_f1_and_correlations_have_their_textbook_values() -> None:
    labels = np.array([1, 1, 1, 0, 0, 0], np.float64)
    predicted = np.array([1, 1, 0, 1, 0, 0], np.float64)
    columns = {"label": labels, "predicted": predicted}
    assert metric_value(Metric("f1", "f1", "label", "predicted"), columns) == pytest.approx(2 * 2 / (3 + 3))
    a, b = np.array([1.0, 2.0, 2.0, 5.0, 9.0]), np.array([2.0, 1.0, 4.0, 8.0, 8.0])
    columns = {"label": a, "predicted": b}
    pearson, spearman = (Metric(name, name, "label", "predicted") for name in ("pearson", "spearman"))
    assert metric_value(pearson, columns) == pytest.approx(np.corrcoef(a, b)[0, 1])
    ranks = np.corrcoef([1, 2.5, 2.5, 4, 5], [2, 1, 3, 4.5, 4.5])[0, 1]
    assert metric_value(spearman, columns) == pytest.approx(ranks)
    columns["predicted"] = np.ones(5)
    assert metric_value(pearson, columns) == metric_value(spearman, columns) == 0
    [figure] = summarize([spearman], {"label": a, "predicted": b}, list("vwxyz"))
    assert figure["value"] == pytest.approx(ranks)
    assert figure["error"] > 0
