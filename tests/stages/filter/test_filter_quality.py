"""The quality classifier tells two kinds of text apart, and depends on nothing but documents, options and seed."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from pipelines.engine.stage import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.stages.filter import quality
from pipelines.stages.filter.quality import QualityModel, draw_thresholds, train_quality

GOOD = "library harbour evening teacher river history music letter garden winter".split()
BAD = "click subscribe cookie login cart offer banner menu newsletter checkout".split()
SHARED = "the of and to in is that it was for on are as with his they at be this from".split()


def write_side(path, words, documents=200, seed=1, order=1, share=0.3):
    draw = random.Random(seed)
    rows = []
    for number in range(documents):
        sizes = range(draw.randrange(20, 200))
        text = " ".join(draw.choice(words if draw.random() < share else SHARED) for _ in sizes)
        rows.append(json.dumps({"id": f"{path.stem}-{number}", "text": text}))
    path.write_text("\n".join(rows[::order]) + "\n")
    return str(path)


def train(folder, good, unfiltered, overwrite=False, **options):
    config = SimpleNamespace(text_field="text", id_field=None, document="file", max_document_mib=None)
    return train_quality([good], [unfiltered], str(folder), config, RunOptions(overwrite=overwrite), **options)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def sides(tmp_path):
    return write_side(tmp_path / "good.jsonl", GOOD), write_side(tmp_path / "raw.jsonl", BAD, seed=2)


def test_a_model_tells_the_sides_apart_and_describes_itself(sides, tmp_path):
    card = train(tmp_path / "model", *sides)
    model = QualityModel.load(str(tmp_path / "model"))
    assert model.card == card
    assert model.fingerprint == card["weights_sha256"]
    assert card["good"]["names"] == ["good.jsonl"]
    assert card["good"]["bytes"] == (tmp_path / "good.jsonl").stat().st_size
    assert (card["unfiltered"]["documents"], card["unfiltered"]["sampled"]) == (200, 200)
    held_out = card["held_out"]
    assert 10 <= held_out["good"] <= 35
    assert held_out["roc_auc"] > 0.99
    assert [point["score"] for point in held_out["curve"]] == [0.1, 0.25, 0.5, 0.75, 0.9]
    assert held_out["curve"][2]["good"] > 0.9
    assert held_out["curve"][2]["unfiltered"] < 0.1
    assert held_out["kept"]["good"] > 5 * held_out["kept"]["unfiltered"]
    texts = [f"the {' '.join(GOOD)} of", f"the {' '.join(BAD)} of", "", "!!! 😀"]
    high, low, *without_words = model.scores(pa.array(texts))
    assert high > 0.9
    assert low < 0.1
    assert without_words == [0, 0]


def test_a_model_depends_on_documents_and_seed_alone(sides, tmp_path):
    train(tmp_path / "one", *sides)
    train(tmp_path / "again", *sides)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "again")
    train(tmp_path / "seed", *sides, seed=5)
    weights = files_of(tmp_path / "one")["weights.npy"]
    assert files_of(tmp_path / "seed")["weights.npy"] != weights
    write_side(tmp_path / "good.jsonl", GOOD, order=-1)
    train(tmp_path / "reversed", *sides)
    assert files_of(tmp_path / "reversed")["weights.npy"] == weights


def test_a_sample_has_the_same_documents_in_any_order(sides, tmp_path):
    card = train(tmp_path / "one", *sides, documents=120)
    assert (card["good"]["documents"], card["good"]["sampled"]) == (200, 120)
    write_side(tmp_path / "good.jsonl", GOOD, order=-1)
    train(tmp_path / "two", *sides, documents=120)
    weights = [files_of(tmp_path / name)["weights.npy"] for name in ("one", "two")]
    assert weights[0] == weights[1]


def test_sides_of_different_sizes_have_the_same_weight(tmp_path):
    good = write_side(tmp_path / "good.jsonl", GOOD, 120, share=0)
    unfiltered = write_side(tmp_path / "raw.jsonl", BAD, 600, seed=2, share=0)
    train(tmp_path / "model", good, unfiltered)
    texts = pa.array([" ".join(random.Random(seed).choices(SHARED, k=60)) for seed in range(100)])
    assert abs(QualityModel.load(str(tmp_path / "model")).scores(texts).mean() - 0.5) < 0.15


def test_a_score_does_not_depend_on_neighbours_or_slices(sides, tmp_path, monkeypatch):
    train(tmp_path / "model", *sides)
    model = QualityModel.load(str(tmp_path / "model"))
    texts = [" ".join(random.Random(seed).choices(GOOD + BAD + SHARED, k=seed)) for seed in range(1, 90)]
    together = model.scores(pa.array(["before", *texts]).slice(1))
    assert together.dtype == np.float32
    assert [model.scores(pa.array([text]))[0] for text in texts] == together.tolist()
    monkeypatch.setattr(quality, "_SLICE_BYTES", 300)
    assert model.scores(pa.array(texts)).tolist() == together.tolist()
    assert model.scores(pa.array([], pa.string())).shape == (0,)


def test_only_the_beginning_of_a_document_is_read(sides, tmp_path):
    train(tmp_path / "model", *sides)
    model = QualityModel.load(str(tmp_path / "model"))
    beginning = (" ".join(GOOD) * 1000)[: quality._CHARACTERS - 1] + " "
    one, two = model.scores(pa.array([beginning, beginning + " ".join(BAD * 1000)]))
    assert one == two


def test_documents_are_kept_as_often_as_the_pareto_distribution_says():
    ids = [f"document {number}" for number in range(50_000)]
    draw = np.random.default_rng(1)
    for score in (0.0, 0.3, 0.6, 0.9, 1.0):
        scores = np.full(len(ids), score, np.float32)
        kept = scores > draw_thresholds(ids, seed=3)
        reference = draw.pareto(9, 200_000) > 1 - score
        assert kept.mean() == pytest.approx(reference.mean(), abs=0.006)
        assert kept.mean() == pytest.approx((2 - score) ** -9.0, abs=0.006)
    assert kept.all()


def test_a_draw_depends_on_seed_and_id_alone():
    ids = [f"document {number}" for number in range(5_000)]
    scores = np.linspace(0, 1, len(ids), dtype=np.float32)
    least = draw_thresholds(ids, seed=3)
    assert draw_thresholds(ids[::-1], seed=3).tolist() == least[::-1].tolist()
    assert draw_thresholds(ids[:7], seed=3).tolist() == least[:7].tolist()
    assert draw_thresholds(ids, seed=4).tolist() != least.tolist()
    assert (scores > draw_thresholds(ids, seed=3, alpha=1)).mean() > (scores > least).mean() + 0.1


def test_the_area_under_the_curve_counts_pairs():
    draw = np.random.default_rng(1)
    good, unfiltered = draw.integers(2, 12, 60) / 12, draw.integers(0, 10, 45) / 12
    wins = (good[:, None] > unfiltered).mean() + (good[:, None] == unfiltered).mean() / 2
    held_out = quality._evaluate(good, unfiltered)
    assert held_out["roc_auc"] == pytest.approx(wins, abs=1e-6)
    assert held_out["curve"][2] == {
        "score": 0.5,
        "good": pytest.approx((good >= 0.5).mean(), abs=1e-6),
        "unfiltered": pytest.approx((unfiltered >= 0.5).mean(), abs=1e-6),
    }


def test_a_side_with_too_few_documents_is_refused(sides, tmp_path):
    few = write_side(tmp_path / "few.jsonl", BAD, 99)
    with pytest.raises(InputError, match=r"few\.jsonl: 99 documents with words, but each side needs 100"):
        train(tmp_path / "model", sides[0], few)
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_no_model_or_was_changed_is_refused(sides, tmp_path):
    with pytest.raises(InputError, match=r"has no card\.json"):
        QualityModel.load(str(tmp_path))
    train(tmp_path / "model", *sides)
    weights = tmp_path / "model" / "weights.npy"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(InputError, match=r"weights\.npy: its SHA-256 is not the one in card\.json"):
        QualityModel.load(str(tmp_path / "model"))
    card = tmp_path / "model" / "card.json"
    card.write_text(card.read_text().replace("weights_sha256", "weights"))
    with pytest.raises(InputError, match=r"weights\.npy: its SHA-256 is not the one in card\.json"):
        QualityModel.load(str(tmp_path / "model"))
    card.write_text(card.read_text().replace("webtext-quality-1", "webtext-quality-0"))
    with pytest.raises(InputError, match=r"card\.json: is not a model card"):
        QualityModel.load(str(tmp_path / "model"))


def test_a_model_is_not_written_among_other_files(sides, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"model: contains other files, such as notes\.txt"):
        train(tmp_path / "model", *sides)
    (tmp_path / "model" / "notes.txt").unlink()
    train(tmp_path / "model", *sides)
    with pytest.raises(UsageError, match="already contains a model"):
        train(tmp_path / "model", *sides, seed=2)
    card = train(tmp_path / "model", *sides, seed=2, overwrite=True)
    assert QualityModel.load(str(tmp_path / "model")).card == card
    assert files_of(tmp_path / "model").keys() == {"card.json", "weights.npy"}


def test_the_same_documents_on_both_sides_are_refused(sides, tmp_path):
    with pytest.raises(UsageError, match=r"good\.jsonl: is on both sides, so there is nothing to learn"):
        train(tmp_path / "model", sides[0], sides[0])
