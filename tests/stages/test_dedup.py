from __future__ import annotations

import itertools
import json
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from datasketch import MinHash

from pipelines.algorithms.minhash.bands import choose_bands
from pipelines.algorithms.minhash.shingles import shingle_hashes_of
from pipelines.core.errors import ChangedRunError
from pipelines.core.executor import SerialExecutor, make_executor
from pipelines.core.run import RunOptions
from pipelines.stages.dedup import clusters
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from webtext_cli.commands.dedup import command

Row = dict[str, Any]
WORDS = [f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "pe", "ro", "si", "tu") for second in "bdfgklmnprst"]


def text_of(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def changed(text: str, rng: random.Random, words: int) -> str:
    parts = text.split()
    for _ in range(words):
        parts[rng.randrange(len(parts))] = rng.choice(WORDS)
    return " ".join(parts)


def random_corpus(seed: int, documents: int = 120) -> list[Row]:
    """Originals, copies with few or many changes, copies of copies, equal texts, short, empty and wordless ones."""
    rng = random.Random(seed)
    texts = [text_of(rng, rng.randrange(20, 90)) for _ in range(documents // 4)]
    while len(texts) < documents - 6:
        source = rng.choice(texts)
        texts.append(
            rng.choice([source, f"  {source}\n", changed(source, rng, 1), changed(source, rng, rng.randrange(1, 9))])
        )
    texts += ["", " \n", "!!!", "???", "two words", "Two  WORDS"]
    rng.shuffle(texts)
    times = [None, 1_400_000_000, 1_500_000_000]
    scores = [None, 3, 3, 40, 500]
    return [
        {"id": f"d{number:04d}", "text": text, "score": rng.choice(scores), "created_utc": rng.choice(times)}
        for number, text in enumerate(texts)
    ]


SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("score", pa.int64()), ("created_utc", pa.int64())])


def write_corpus(folder: Path, rows: list[Row], shards: int = 3) -> Path:
    folder.mkdir()
    for index in range(shards):
        part = rows[len(rows) * index // shards : len(rows) * (index + 1) // shards]
        pq.write_table(pa.Table.from_pylist(part, schema=SCHEMA), folder / f"part-{index}.parquet")
    return folder


def run(
    documents: Path,
    output: Path,
    workers: int = 1,
    executor: Any = None,
    buckets: int | None = None,
    **settings: Any,
):
    options = RunOptions(executor or make_executor(workers))
    return dedup(
        DedupConfig(**settings), documents=str(documents), output=str(output), options=options, buckets=buckets
    )


def rows_of(folder: Path, noun: str) -> list[Row]:
    return [row for path in sorted(folder.glob(f"{noun}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def outcome(folder: Path) -> tuple[list[str], list[tuple[str, str, str]]]:
    kept = sorted(row["id"] for row in rows_of(folder, "documents"))
    return kept, sorted((row["id"], row["reason"], row["detail"]) for row in rows_of(folder, "dropped"))


def result_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def normalized_text(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def shingles_of(text: str, ngram: int) -> list[str]:
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", text).lower())
    return [" ".join(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))] if words else []


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
            signature = MinHash(config.num_perm, config.seed, hashfunc=int, scheme="affine32")
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
        (3, {"ngram": 2, "num_perm": 64, "seed": 9}),
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
    assert sorted(one) == ["clusters.parquet", *shards, "manifest.json", "report.html"]
    run(documents, tmp_path / "parts", buckets=7)
    parts = result_files(tmp_path / "parts")
    assert {name: data for name, data in parts.items() if name != "manifest.json"} == {
        name: data for name, data in one.items() if name != "manifest.json"
    }


class _StoppedError(Exception):
    pass


class _StoppingExecutor(SerialExecutor):
    """Ends, as a kill does, after a number of tasks."""

    def __init__(self, tasks: int) -> None:
        self._left = tasks

    def map(self, *arguments, **options):
        for result in super().map(*arguments, **options):
            if not self._left:
                raise _StoppedError
            self._left -= 1
            yield result


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    documents = write_corpus(folder / "in", random_corpus(13, 60))
    run(documents, folder / "whole")
    return documents, result_files(folder / "whole")


@pytest.mark.parametrize("tasks", range(1, 19, 2))
def test_a_stopped_run_resumes_to_the_same_bytes(finished, tmp_path, tasks):
    documents, whole = finished
    with pytest.raises(_StoppedError):
        run(documents, tmp_path / "stopped", executor=_StoppingExecutor(tasks))
    assert not (tmp_path / "stopped" / "manifest.json").exists()
    run(documents, tmp_path / "stopped")
    assert result_files(tmp_path / "stopped") == whole


def test_a_lost_file_of_a_finished_run_is_rebuilt(tmp_path):
    documents = write_corpus(tmp_path / "in", random_corpus(14, 60))
    run(documents, tmp_path / "out")
    whole = result_files(tmp_path / "out")
    for name in ("documents-00001.parquet", "clusters.parquet"):
        (tmp_path / "out" / name).unlink()
        run(documents, tmp_path / "out")
        assert result_files(tmp_path / "out") == whole
    with pytest.raises(ChangedRunError, match=r"threshold was 0\.8, is now 0\.7"):
        run(documents, tmp_path / "out", threshold=0.7)


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
        for n, text in enumerate(["!!!", "???", "", "!!!"])
    ]
    run(write_corpus(tmp_path / "in", rows, shards=1), tmp_path / "out")
    assert outcome(tmp_path / "out") == (["0", "1", "2"], [("3", "exact_duplicate", "0")])


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
    sets = {row["id"]: set(shingles_of(row["text"], 5)) for row in rows}
    similarity = {
        frozenset(pair): len(sets[pair[0]] & sets[pair[1]]) / len(sets[pair[0]] | sets[pair[1]])
        for pair in itertools.combinations(sets, 2)
    }
    assert 20_000 < sum(value >= 0.8 for value in similarity.values()) < 60_000
    assert [pair for pair in itertools.combinations(kept, 2) if similarity[frozenset(pair)] >= 0.8] == []
    assert all(similarity[frozenset((id, best))] >= 0.8 and best in kept for id, _, best in dropped)


def test_rounds_over_files_decide_as_one_pass_in_memory_does(tmp_path, monkeypatch):
    documents = write_corpus(tmp_path / "in", random_corpus(17))
    run(documents, tmp_path / "memory")
    monkeypatch.setattr(clusters, "_PAIRS_IN_MEMORY", 0)
    run(documents, tmp_path / "rounds")
    assert result_files(tmp_path / "rounds") == result_files(tmp_path / "memory")


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
