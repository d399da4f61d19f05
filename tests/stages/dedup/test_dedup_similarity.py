"""Dropped documents are at the threshold to a kept one, and kept ones are not, in large buckets too."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest
from dedup_run import changed, outcome, random_corpus, result_files, run, shingles_of, text_of, write_corpus

from pipelines.stages.dedup import clusters


def test_clusters_lists_every_member_with_its_true_similarity_and_has_no_chains(tmp_path):
    rng = random.Random(8)
    chain = [text_of(rng, 120)]
    for _ in range(6):
        chain.append(changed(chain[-1], rng, 2))
    rows = [{"id": f"c{n}", "text": text, "score": 100 - n, "created_utc": 1} for n, text in enumerate(chain)]
    rows += [{"id": "copy", "text": " " + chain[0], "score": 1, "created_utc": 1}]
    rows += [{"id": f"alone{n}", "text": text_of(rng, 50), "score": 1, "created_utc": 1} for n in range(5)]
    summary = run(write_corpus(tmp_path / "in", rows), tmp_path / "out")
    sets = [set(shingles_of(text, 5)) for text in chain]
    similarity = [[len(one & other) / len(one | other) for other in sets] for one in sets]
    # c2 is near c1, but not near c0, which is kept: so it is kept as well.
    assert similarity[1][0] >= 0.8 > similarity[2][0]
    assert similarity[2][1] >= 0.8
    listed = {row["id"]: row for row in pq.read_table(tmp_path / "out" / "clusters.parquet").to_pylist()}
    assert listed["c0"] == {"id": "c0", "cluster": "c0", "kind": "kept", "jaccard": None, "documents": 3}
    assert listed["copy"] == {"id": "copy", "cluster": "c0", "kind": "exact", "jaccard": 1.0, "documents": 3}
    assert listed["c1"] == {
        "id": "c1", "cluster": "c0", "kind": "near", "jaccard": similarity[1][0], "documents": 3,
    }  # fmt: skip
    assert listed["c2"]["kind"] == "kept"
    for row in listed.values():
        if row["kind"] == "near":
            assert row["jaccard"] == similarity[int(row["id"][1:])][int(row["cluster"][1:])] >= 0.8
    assert (summary.extra["clusters"], summary.extra["largest_cluster"]) == (
        len({row["cluster"] for row in listed.values()}),
        3,
    )


def test_injected_duplicates_are_found_at_and_above_the_threshold_and_never_below(tmp_path):
    """Pairs of texts of distinct words, made to an exact Jaccard similarity of their single words."""
    rng = random.Random(21)
    rows, similarity_of = [], {}
    for similarity, pairs in ((0.7, 60), (0.78, 60), (0.8, 60), (0.85, 60), (0.95, 60)):
        for pair in range(pairs):
            shared = round(200 * similarity / (1 + similarity))
            names = [f"w{rng.getrandbits(60):x}" for _ in range(200 - shared)]
            left, right = names[:100], names[:shared] + names[100:]
            true = shared / len(names)
            for side, words in (("a", left), ("b", right)):
                rows.append(
                    {"id": f"{similarity}-{pair}-{side}", "text": " ".join(words), "score": 1, "created_utc": 1}
                )
            similarity_of[f"{similarity}-{pair}-b"] = true
    run(write_corpus(tmp_path / "in", rows), tmp_path / "out", ngram=1)
    dropped = {id for id, _, _ in outcome(tmp_path / "out")[1]}
    assert all(similarity_of[id] >= 0.8 for id in dropped)
    expected = {id for id, true in similarity_of.items() if true >= 0.8}
    assert len(expected) == 180
    assert len(dropped & expected) >= 177


def test_a_large_bucket_of_near_duplicates_is_one_cluster_at_linear_cost(tmp_path):
    rng = random.Random(31)
    base = text_of(rng, 400)
    rows = [{"id": f"{n:03d}", "text": changed(base, rng, 2), "score": n, "created_utc": 1} for n in range(300)]
    summary = run(write_corpus(tmp_path / "in", rows), tmp_path / "out")
    assert outcome(tmp_path / "out")[0] == ["299"]
    assert summary.extra["largest_cluster"] == 300
    assert summary.extra["candidate_pairs"] < 300 * 299 / 2


def test_in_a_large_bucket_no_two_documents_at_the_threshold_are_kept(tmp_path):
    """Pages of one template, each with its own few words: about a third of the 79,800 pairs are at the threshold."""
    rng = random.Random(32)
    base = text_of(rng, 300)
    rows = [
        {"id": f"{n:03d}", "text": changed(base, rng, rng.randrange(1, 6)), "score": rng.randrange(9), "created_utc": 1}
        for n in range(400)
    ]
    run(write_corpus(tmp_path / "in", rows), tmp_path / "out", buckets=3)
    kept, dropped = outcome(tmp_path / "out")
    # As the sets of shingles give it, of all pairs at once.
    numbers = {
        shingle: number for number, shingle in enumerate({s for row in rows for s in shingles_of(row["text"], 5)})
    }
    has = np.zeros((len(rows), len(numbers)), np.float64)
    for place, row in enumerate(rows):
        has[place, [numbers[shingle] for shingle in shingles_of(row["text"], 5)]] = 1
    common, sizes = has @ has.T, has.sum(1)
    similarity = common / (sizes[:, None] + sizes - common)
    assert 20_000 < (np.triu(similarity, 1) >= 0.8).sum() < 60_000
    # The id of a document is its place.
    assert [pair for pair in itertools.combinations(map(int, kept), 2) if similarity[pair] >= 0.8] == []
    assert all(similarity[int(id), int(best)] >= 0.8 and best in kept for id, _, best in dropped)


@pytest.mark.parametrize("threshold", [0.1, 0.3])
def test_at_a_low_threshold_the_rounds_of_large_buckets_end_soon(tmp_path, threshold):
    """Texts of few common words: nearly all share a band with nearly all, and most followers lose their leader."""
    rng = random.Random(33)
    common = [text_of(rng, 6) for _ in range(12)]
    rows = [
        {
            "id": f"{n:03d}",
            "text": " ".join([*rng.sample(common, rng.randrange(3, 10)), text_of(rng, rng.randrange(5, 40))]),
            "score": rng.randrange(9),
            "created_utc": 1,
        }
        for n in range(250)
    ]
    run(write_corpus(tmp_path / "in", rows), tmp_path / "out", threshold=threshold, ngram=2)
    kept, dropped = outcome(tmp_path / "out")
    sets = {row["id"]: set(shingles_of(row["text"], 2)) for row in rows}
    assert all(
        len(sets[one] & sets[other]) / len(sets[one] | sets[other]) < threshold
        for one, other in itertools.combinations(kept, 2)
    )
    assert len(dropped) > 100
    phases = {shard["phase"] for shard in json.loads((tmp_path / "out" / "manifest.json").read_text())["shards"]}
    assert 1 < sum(phase.startswith("verification-") for phase in phases) < 9


def test_rounds_over_files_decide_as_those_in_memory_do(tmp_path, monkeypatch):
    documents = write_corpus(tmp_path / "in", random_corpus(17))
    run(documents, tmp_path / "memory")
    monkeypatch.setattr(clusters, "_PAIRS_IN_MEMORY", 0)
    run(documents, tmp_path / "rounds")
    assert result_files(tmp_path / "rounds") == result_files(tmp_path / "memory")


def test_a_chain_of_documents_takes_few_rounds(tmp_path, monkeypatch):
    """Each document is near the one before, so that one is dropped of every two or three."""
    rounds = []
    decide = clusters.decide_round
    monkeypatch.setattr(clusters, "decide_round", lambda *edges: (rounds.append(1), decide(*edges)))
    words = text_of(random.Random(19), 300).split()
    texts = [" ".join(words[start : start + 80]) for start in range(0, 200, 8)]
    rows = [{"id": f"{n:03d}", "text": text, "score": 200 - n, "created_utc": 1} for n, text in enumerate(texts)]
    run(write_corpus(tmp_path / "in", rows), tmp_path / "out")
    kept, _ = outcome(tmp_path / "out")
    assert [int(id) for id in kept] == [*range(0, 25, 2)]
    assert len(rounds) == 1
