"""Earlier corpora, and the signatures that stand for them."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from dedup_run import (
    Row,
    StoppedError,
    StoppingExecutor,
    changed,
    outcome,
    rows_of,
    run,
    shingles_of,
    text_of,
    write_corpus,
)

from pipelines.errors import InputError, WebtextError

pytestmark = pytest.mark.usefixtures("warm_processes")


def row(id: str, text: str, score: int = 1) -> Row:
    return {"id": id, "text": text, "score": score, "created_utc": 1}


@pytest.fixture
def texts() -> list[str]:
    rng = random.Random(4)
    return [text_of(rng, 100) for _ in range(6)]


@pytest.fixture
def months(tmp_path, texts):
    """Return an earlier and a later month: of the later, `equal` and `near` are in the earlier one."""
    rng = random.Random(5)
    earlier = [row(f"old{n}", text) for n, text in enumerate(texts[:3])] + [row("old9-copy", texts[0])]
    later = [
        row("equal", f" {texts[0]}\n", 99),
        row("near", changed(texts[1], rng, 2), 99),
        row("new", texts[3], 5),
        row("new-copy", texts[3], 4),
    ]
    return write_corpus(tmp_path / "earlier", earlier), write_corpus(tmp_path / "later", later)


def check(folder) -> None:
    assert outcome(folder) == (
        ["new"],
        [
            ("equal", "exact_duplicate", "old0"),
            ("near", "near_duplicate", "old1"),
            ("new-copy", "exact_duplicate", "new"),
        ],
    )
    listed = {row["id"]: row for row in pq.read_table(folder / "clusters.parquet").to_pylist()}
    assert sorted(listed) == ["equal", "near", "new", "new-copy"]
    assert (listed["equal"]["cluster"], listed["equal"]["kind"], listed["equal"]["documents"]) == ("old0", "exact", 2)
    assert 0.8 <= listed["near"]["jaccard"] < 1


def test_documents_of_an_earlier_corpus_are_dropped_whatever_their_score(months, tmp_path):
    earlier, later = months
    summary = run(later, tmp_path / "out", against=(str(earlier),))
    check(tmp_path / "out")
    assert (summary.records_in, summary.records_out) == (4, 1)
    run(earlier, tmp_path / "deduplicated")
    run(later, tmp_path / "out2", workers=2, against=(str(tmp_path / "deduplicated"),))
    check(tmp_path / "out2")


def test_signatures_stand_for_an_earlier_corpus_with_its_documents_and_without(months, tmp_path):
    earlier, later = months
    run(earlier, tmp_path / "signed", write_signatures=True)
    folder = tmp_path / "signed"
    run(later, tmp_path / "out", against=(str(folder),))
    check(tmp_path / "out")
    similarity = {row["id"]: row["jaccard"] for row in pq.read_table(tmp_path / "out/clusters.parquet").to_pylist()}
    for path in folder.glob("documents-*.parquet"):
        path.unlink()
    run(later, tmp_path / "estimated", against=(str(folder),))
    check(tmp_path / "estimated")
    listed = pq.read_table(tmp_path / "estimated" / "clusters.parquet").to_pylist()
    [estimate] = [row["jaccard"] for row in listed if row["id"] == "near"]
    assert estimate != similarity["near"]
    assert estimate == pytest.approx(similarity["near"], abs=0.1)


def test_signatures_of_other_options_are_refused(months, tmp_path):
    earlier, later = months
    run(earlier, tmp_path / "signed", write_signatures=True, ngram=3)
    with pytest.raises(InputError, match=r"signatures-00000\.parquet: has signatures of .*\"ngram\": 3.*not of"):
        run(later, tmp_path / "out", against=(str(tmp_path / "signed"),))


def test_the_signatures_of_the_kept_documents_load_into_datasketch(months, texts, tmp_path):
    earlier, _ = months
    run(earlier, tmp_path / "signed", write_signatures=True)
    rows = rows_of(tmp_path / "signed", "signatures")
    assert [row["id"] for row in rows] == [row["id"] for row in rows_of(tmp_path / "signed", "documents")]
    settings = json.loads(pq.read_schema(tmp_path / "signed" / "signatures-00000.parquet").metadata[b"minhash"])
    assert settings == {"ngram": 5, "num_perm": 128, "seed": 1, "scheme": "affine32"}
    index = MinHashLSH(threshold=0.8, num_perm=128)
    for document in rows:
        index.insert(document["id"], minhash_of(document))
    changed_text = changed(texts[1], random.Random(8), 1)
    run(write_corpus(tmp_path / "query", [row("q", changed_text)]), tmp_path / "queried", write_signatures=True)
    [query] = rows_of(tmp_path / "queried", "signatures")
    assert index.query(minhash_of(query)) == ["old1"]


def test_signatures_that_datasketch_would_not_understand_are_refused(months, tmp_path, monkeypatch):
    # As if a version of datasketch had another meaning of the seed.
    monkeypatch.setattr("datasketch.MinHash", lambda num_perm, seed, **others: MinHash(num_perm, seed + 1, **others))
    with pytest.raises(WebtextError, match="--write-signatures: datasketch computes other signatures"):
        run(months[0], tmp_path / "signed", write_signatures=True)
    assert not (tmp_path / "signed").exists()


def minhash_of(row: Row) -> MinHash:
    return MinHash(128, 1, hashvalues=np.array(row["minhash"], np.uint32), scheme="affine32")


def test_in_a_large_bucket_documents_near_an_earlier_one_are_dropped(texts, tmp_path):
    rng = random.Random(7)
    earlier = write_corpus(tmp_path / "earlier", [row(f"old{n}", changed(texts[0], rng, 1)) for n in range(2)])
    versions = [row(f"n{n:03d}", changed(texts[0], rng, 1)) for n in range(200)]
    later = write_corpus(tmp_path / "later", [*versions, row("other", texts[1])])
    run(later, tmp_path / "out", against=(str(earlier),))
    kept, dropped = outcome(tmp_path / "out")
    assert "other" in kept
    sets = {row["id"]: set(shingles_of(row["text"], 5)) for row in rows_of(earlier, "part") + rows_of(later, "part")}
    for id in kept:
        assert all(len(sets[id] & sets[old]) / len(sets[id] | sets[old]) < 0.8 for old in ("old0", "old1"))
    assert {best for _, _, best in dropped} <= {"old0", "old1", *kept}


def test_a_resumed_run_keeps_its_number_of_buckets(months, tmp_path):
    earlier, later = months
    run(later, tmp_path / "whole", against=(str(earlier),))
    with pytest.raises(StoppedError):
        run(later, tmp_path / "out", executor=StoppingExecutor(7), buckets=5, against=(str(earlier),))
    run(later, tmp_path / "out", buckets=2, against=(str(earlier),))
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")


def test_a_run_resumes_without_the_texts_of_a_signed_corpus(months, tmp_path):
    earlier, later = months
    signed = tmp_path / "signed"
    run(earlier, signed, write_signatures=True)
    run(later, tmp_path / "whole", against=(str(signed),))
    with pytest.raises(StoppedError):
        run(later, tmp_path / "out", executor=StoppingExecutor(7), against=(str(signed),))
    for path in signed.glob("documents-*.parquet"):
        path.unlink()
    run(later, tmp_path / "out", against=(str(signed),))
    assert outcome(tmp_path / "out") == outcome(tmp_path / "whole")
