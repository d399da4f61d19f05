"""What dedup keeps and drops, whatever the order, the workers and the columns of the input."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from datasketch import MinHash
from dedup_run import (
    SCHEMA,
    Row,
    changed,
    normalized_text,
    outcome,
    random_corpus,
    result_files,
    rows_of,
    run,
    shingles_of,
    text_of,
    write_corpus,
)

from pipelines.algorithms.minhash.signing import choose_bands, shingle_hashes_of
from pipelines.records import shards
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.documents import count_documents, record_type, work_name
from webtext_cli.commands.dedup import command

pytestmark = pytest.mark.usefixtures("warm_processes")


def reference(rows: list[Row], config: DedupConfig) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return what is kept and dropped, by sets of strings and dictionaries of buckets, best first."""
    shingles = [set(shingles_of(row["text"], config.ngram)) for row in rows]
    near: dict[int, dict[int, float]] = defaultdict(dict)
    for members in _buckets(rows, shingles, config):
        for one, other in itertools.combinations(members, 2):
            same_text = normalized_text(rows[one]["text"]) == normalized_text(rows[other]["text"])
            union = shingles[one] | shingles[other]
            similarity = 1.0 if same_text else len(shingles[one] & shingles[other]) / len(union)
            if similarity >= config.threshold:
                near[one][other] = near[other][one] = similarity
    kept: list[int] = []
    dropped = []
    for number in sorted(range(len(rows)), key=lambda number: _rank(rows[number])):
        similar = [
            (similarity, -place, best) for place, best in enumerate(kept) if (similarity := near[number].get(best))
        ]
        if not similar:
            kept.append(number)
            continue
        best = max(similar)[2]
        same_text = normalized_text(rows[number]["text"]) == normalized_text(rows[best]["text"])
        dropped.append((rows[number]["id"], f"{'exact' if same_text else 'near'}_duplicate", rows[best]["id"]))
    return sorted(rows[number]["id"] for number in kept), sorted(dropped)


def _buckets(rows: list[Row], shingles: list[set[str]], config: DedupConfig) -> Iterator[list[int]]:
    bands, width = choose_bands(config.num_perm, config.threshold)
    buckets: dict[object, list[int]] = defaultdict(list)
    for number, (row, shingles_of_row) in enumerate(zip(rows, shingles, strict=True)):
        buckets[normalized_text(row["text"])].append(number)
        if shingles_of_row:
            signature = MinHash(config.num_perm, config.minhash_seed, hashfunc=int, scheme="affine32")
            hashes, _ = shingle_hashes_of(pa.array([row["text"]]), config.ngram)
            signature.update_batch((hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32).tolist())
            for band in range(bands):
                buckets[band, tuple(signature.hashvalues[band * width : (band + 1) * width].tolist())].append(number)
    yield from buckets.values()


def _rank(row: Row) -> tuple[float, float, str]:
    score, created = row["score"], row["created_utc"]
    return (-score if score is not None else float("inf"), created if created is not None else float("inf"), row["id"])


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (1, {}),
        (2, {"threshold": 0.5}),
        (3, {"ngram": 2, "num_perm": 64, "minhash_seed": 9}),
        (4, {"threshold": 1.0}),
        (5, {"ngram": 1}),
    ],
)
def test_the_result_matches_a_plain_reference(tmp_path, seed, settings):
    rows = random_corpus(seed)
    summary = run(write_corpus(tmp_path / "in", rows), tmp_path / "out", **settings)
    expected = reference(rows, DedupConfig(**settings))
    assert outcome(tmp_path / "out") == expected
    assert summary.records_in == len(rows) == summary.records_out + sum(summary.dropped.values())
    assert dict(summary.dropped) == dict(Counter(reason for _, reason, _ in expected[1]))
    assert summary.extra["clusters"] == len({detail for _, _, detail in expected[1]})


def test_the_result_does_not_depend_on_the_order_of_the_input(tmp_path):
    rows = random_corpus(11)
    run(write_corpus(tmp_path / "in", rows), tmp_path / "out")
    expected = outcome(tmp_path / "out")
    clusters = sorted(map(str, pq.read_table(tmp_path / "out" / "clusters.parquet").to_pylist()))
    for seed in range(2):
        random.Random(seed).shuffle(rows)
        run(write_corpus(tmp_path / f"in{seed}", rows, shards=seed + 1), tmp_path / f"out{seed}")
        assert outcome(tmp_path / f"out{seed}") == expected
        assert sorted(map(str, pq.read_table(tmp_path / f"out{seed}" / "clusters.parquet").to_pylist())) == clusters


def test_the_bytes_are_the_same_for_one_worker_and_three_and_for_small_parts(tmp_path):
    documents = write_corpus(tmp_path / "in", random_corpus(12, 60))
    run(documents, tmp_path / "one")
    run(documents, tmp_path / "three", workers=3)
    one = result_files(tmp_path / "one")
    assert one == result_files(tmp_path / "three")
    shards = [f"{noun}-0000{number}.parquet" for noun in ("documents", "dropped") for number in range(3)]
    assert sorted(one) == ["README.md", "clusters.parquet", *shards, "manifest.json", "report.html"]
    run(documents, tmp_path / "parts", buckets=7)
    parts = result_files(tmp_path / "parts")
    assert {name: data for name, data in parts.items() if name != "manifest.json"} == {
        name: data for name, data in one.items() if name != "manifest.json"
    }


def test_the_best_of_a_cluster_is_kept_by_score_then_time_then_id(tmp_path):
    ranked = [
        ("e", 9, 50),
        ("d", 9, 60),
        ("a", 9, None),
        ("b", 9, None),
        ("c", 4, 10),
        ("f", None, 10),
        ("g", None, None),
    ]
    rows = []
    for first in range(len(ranked) - 1):
        text = text_of(random.Random(first), 60)
        for id, score, time in ranked[first:]:
            rows.append({"id": f"{first}{id}", "text": text, "score": score, "created_utc": time})
    run(write_corpus(tmp_path / "in", rows[::-1], shards=2), tmp_path / "out")
    assert outcome(tmp_path / "out")[0] == ["0e", "1d", "2a", "3b", "4c", "5f"]


def test_foreign_inputs_may_repeat_ids(tmp_path):
    rng = random.Random(5)
    first, second = text_of(rng, 80), text_of(rng, 80)
    rows = [
        {"id": "x", "text": first, "score": 1, "created_utc": None},
        {"id": "x", "text": second, "score": 2, "created_utc": None},
        {"id": "x", "text": first, "score": 3, "created_utc": None},
    ]
    run(write_corpus(tmp_path / "in", rows, shards=2), tmp_path / "out")
    assert sorted((row["text"], row["score"]) for row in rows_of(tmp_path / "out", "documents")) == sorted(
        [(first, 3), (second, 2)]
    )


def test_texts_without_words_are_duplicates_only_if_equal(tmp_path):
    rows = [
        {"id": str(n), "text": text, "score": None, "created_utc": None}
        for n, text in enumerate(["!!!", "???", "-", "!!!"])
    ]
    run(write_corpus(tmp_path / "in", rows, shards=1), tmp_path / "out")
    assert outcome(tmp_path / "out") == (["0", "1", "2"], [("3", "exact_duplicate", "0")])


def test_other_columns_pass_through_and_unreadable_records_are_counted_once(tmp_path):
    text = text_of(random.Random(2), 50)
    lines = [json.dumps({"id": str(n), "body": text, "score": n, "tag": {"n": n}}) for n in range(3)]
    (tmp_path / "in.jsonl").write_text("\n".join([lines[0], "not json", *lines[1:]]) + "\n")
    summary = run(tmp_path / "in.jsonl", tmp_path / "out", text_field="body")
    assert (summary.records_in, summary.records_out) == (4, 1)
    assert dict(summary.dropped) == {"exact_duplicate": 2, "bad_json": 1}
    [document] = rows_of(tmp_path / "out", "documents")
    assert (document["id"], document["text"], document["metadata"]) == ("2", text, '{"tag": {"n": 2}}')


def test_floating_point_scores_and_dates_are_compared(tmp_path):
    text = text_of(random.Random(2), 50)
    for name, scores in (("large", [3.0, float("nan"), 7.0]), ("small", [0.2, None, 0.9])):
        table = pa.table({"id": ["a", "b", "c"], "text": [text] * 3, "score": pa.array(scores, pa.float64())})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        run(tmp_path / f"{name}.parquet", tmp_path / name)
        assert outcome(tmp_path / name)[0] == ["c"]
    dates = pa.array([3_000_000, 1_000_000, None], pa.timestamp("us"))
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": [text] * 3, "created_utc": dates}), tmp_path / "d.parquet")
    run(tmp_path / "d.parquet", tmp_path / "dates")
    assert outcome(tmp_path / "dates")[0] == ["b"]


def test_scores_and_dates_in_any_form_are_compared_and_others_are_counted(tmp_path):
    text = text_of(random.Random(9), 60)
    for name, values in (
        ("floats", [{"score": 0.12}, {"score": 0.97}, {"score": 0.5}]),
        ("mixed", [{"score": 5}, {"score": "99"}, {"score": 7.5}]),
        (
            "dates",
            [{"created_utc": "2017-12-02"}, {"created_utc": "2017-12-01T10:00:00Z"}, {"created_utc": 1512500000}],
        ),
        ("unreadable", [{"score": "good"}, {"score": 1}, {"created_utc": "yesterday"}]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        rows = [{"id": id, "text": text, **fields} for id, fields in zip("abc", values, strict=True)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = run(folder, tmp_path / f"{name}-out")
        assert outcome(tmp_path / f"{name}-out")[0] == ["b"]
        unreadable = {
            key: summary.extra[key] for key in ("unreadable_scores", "unreadable_dates") if key in summary.extra
        }
        assert unreadable == ({"unreadable_scores": 1, "unreadable_dates": 1} if name == "unreadable" else {})
    table = pa.table({"id": ["a", "b", "c"], "text": [text] * 3, "score": ["1", "99", "5"]})
    pq.write_table(table, tmp_path / "strings.parquet")
    run(tmp_path / "strings.parquet", tmp_path / "strings")
    assert outcome(tmp_path / "strings")[0] == ["b"]


def test_which_of_several_documents_of_one_id_is_kept_does_not_depend_on_their_order(tmp_path):
    rng = random.Random(9)
    text = text_of(rng, 200)
    rows = [{"id": "x", "text": changed(text, rng, 1), "score": 1, "created_utc": 1} for _ in range(2)]
    for name, ordered in (("one", rows), ("other", rows[::-1])):
        run(write_corpus(tmp_path / name, ordered, shards=1), tmp_path / f"{name}-out")
    assert rows_of(tmp_path / "one-out", "documents") == rows_of(tmp_path / "other-out", "documents")
    assert len(rows_of(tmp_path / "one-out", "documents")) == 1


def test_nothing_is_dropped_without_duplicates(tmp_path):
    rng = random.Random(3)
    rows = [{"id": str(n), "text": text_of(rng, 40), "score": 1, "created_utc": 1} for n in range(10)]
    summary = run(write_corpus(tmp_path / "in", rows), tmp_path / "out")
    assert (summary.records_out, dict(summary.dropped), summary.extra["clusters"]) == (10, {}, 0)
    assert pq.read_table(tmp_path / "out" / "clusters.parquet").num_rows == 0


def test_an_empty_shard_is_allowed(tmp_path):
    rows = random_corpus(15, 40)
    documents = write_corpus(tmp_path / "in", rows, shards=2)
    pq.write_table(pa.Table.from_pylist([], schema=SCHEMA), documents / "part-0-empty.parquet")
    run(documents, tmp_path / "out")
    assert outcome(tmp_path / "out") == reference(rows, DedupConfig())


def test_the_command(tmp_path):
    write_corpus(tmp_path / "in", random_corpus(6, 40))
    arguments = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--json", "-q", "--workers", "1"]
    result = CliRunner().invoke(command, [*arguments, "--threshold", "0.7"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert summary["records_in"] == 40 == summary["records_out"] + sum(summary["dropped"].values())


def test_the_driver_copies_no_records_of_remote_shards(monkeypatch):
    output = "memory://dedup-driver"
    for shard, length in enumerate((3, 0, 70_000)):
        shards.write_array(output, work_name("records", shard, "npy"), np.zeros(length, record_type(128)))
    monkeypatch.setattr("pipelines.storage.mapped_path", None)
    assert count_documents(3, output) == (0, 3, 3, 70_003)
