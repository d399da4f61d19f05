"""The merge of submissions to links, against a plain one that goes row by row through dictionaries."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.records.buckets import write_buckets
from pipelines.records.schemas import LINK_SCHEMA
from pipelines.stages.scrape import merge
from pipelines.stages.scrape.merge import SUBMISSION_SCHEMA, MergeContext, merge_bucket

Row = dict[str, Any]

_INT64_MAX = 2**63 - 1
_BUCKET = 5


def plain_merge(rows: list[Row], karma: str, min_score: int | None) -> tuple[list[Row], dict[str, int]]:
    """Return the links by URL, and the drops."""
    dropped: Counter[str] = Counter()
    links = []
    for _, group in itertools.groupby(sorted(rows, key=lambda row: row["url"]), key=lambda row: row["url"]):
        submissions = list(group)
        distinct = distinct_submissions(submissions)
        dropped["duplicate_submission"] += len(submissions) - len(distinct)
        link = link_of(distinct, karma)
        if min_score is not None and link["score"] < min_score:
            dropped["low_score"] += len(distinct)
        else:
            dropped["merged_into_link"] += len(distinct) - 1
            links.append(link)
    return links, {reason: count for reason, count in dropped.items() if count}


def distinct_submissions(rows: list[Row]) -> list[Row]:
    best: dict[str, Row] = {}
    for number, row in enumerate(sorted(rows, key=lambda row: (-row["score"], *order_of(row)))):
        best.setdefault(row["id"] or f" {number}", row)
    return sorted(best.values(), key=order_of)


def link_of(rows: list[Row], karma: str) -> Row:
    first = rows[0]
    scores = [row["score"] for row in rows]
    total = max(-_INT64_MAX - 1, min(_INT64_MAX, sum(scores)))
    with_id = [row for row in rows if row["id"]]
    return {
        "url": first["url"],
        "original_url": first["original_url"] or first["url"],
        "domain": first["domain"],
        "score": {"max": max(scores), "sum": total, "first": scores[0]}[karma],
        "submission_ids": [row["id"] for row in with_id],
        "subreddits": [row["subreddit"] for row in rows if row["id"] or row["subreddit"]],
        "authors": [row["author"] for row in with_id],
        "title": first["title"],
        "created_utc": first["created_utc"],
        "over_18": any(row["over_18"] for row in rows),
    }


def order_of(row: Row) -> tuple[Any, ...]:
    keys = ("created_utc", "id", "original_url", "title", "subreddit", "author", "over_18")
    return tuple("" if row[key] is None else row[key] for key in keys)


def _merged(
    folder: Path, files: list[list[Row]], karma: str, min_score: int | None, flush_bytes: int = 1 << 20, **limits: int
) -> tuple[pa.Table, Any]:
    """Write work files of one bucket, among others, and merge it."""
    names = []
    for number, rows in enumerate(files):
        names.append(f"_work/submissions-{number:05d}.buckets")
        with write_buckets(str(folder / names[-1]), SUBMISSION_SCHEMA, flush_bytes) as written:
            for start in range(0, len(rows), 5):
                batch = pa.RecordBatch.from_pylist(rows[start : start + 5] * 2, schema=SUBMISSION_SCHEMA)
                written.write(batch, _buckets_of(batch.num_rows))
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(merge, name, limit)
        result = merge_bucket(_BUCKET, MergeContext(tuple(names), karma, min_score, str(folder)))
    return pq.read_table(folder / f"links-{_BUCKET:05d}.parquet"), result


def _buckets_of(rows: int) -> list[int]:
    return [_BUCKET] * (rows // 2) + [2] * (rows // 2)


_texts = st.sampled_from(["", "a", "b", "é", "z\U0001f600", "\ufffd"])
_rows = st.fixed_dictionaries(
    {
        "url": st.sampled_from(
            [f"http://{host}/{end}" for host in ("a.com", "é.com") for end in ("", "~", "\uffff", "😀")]
        ),
        "original_url": st.none() | _texts,
        "domain": st.just("a.com"),
        "score": st.integers(-2, 5) | st.sampled_from([_INT64_MAX, -_INT64_MAX - 1]),
        "id": st.sampled_from(["", "", "a", "b", "B", "10", "9"]),
        "subreddit": _texts,
        "author": _texts,
        "title": _texts,
        "created_utc": st.integers(0, 2),
        "over_18": st.booleans(),
    }
)


@pytest.mark.parametrize("karma", ["max", "sum", "first"])
@pytest.mark.parametrize("in_ranges", [False, True])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.lists(_rows, max_size=30), min_size=1, max_size=3),
    min_score=st.none() | st.integers(0, 6),
)
def test_the_merge_matches_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory,
    karma: str,
    in_ranges: bool,
    files: list[list[Row]],
    min_score: int | None,
) -> None:
    limits = {"flush_bytes": 700, "_MAX_SORTED_BYTES": 900, "_LINKS_PER_BATCH": 2} if in_ranges else {}
    table, result = _merged(tmp_path_factory.mktemp("merge"), files, karma, min_score, **limits)
    every = list(itertools.chain.from_iterable(files))
    links, dropped = plain_merge(every, karma, min_score)
    assert table.schema.equals(LINK_SCHEMA)
    assert table.to_pylist() == links
    assert (result.records_out, result.dropped) == (len(links), dropped)
    assert len(every) == len(links) + sum(dropped.values())


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(_rows, max_size=40), data=st.data(), karma=st.sampled_from(["max", "sum", "first"]))
def test_the_bytes_do_not_depend_on_order_and_split_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], data: st.DataObject, karma: str
) -> None:
    def checksum(files: list[list[Row]], **limits: int) -> str:
        folder = tmp_path_factory.mktemp("merge")
        return str(_merged(folder, files, karma, min_score=1, **limits)[1].files[0].sha256)

    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    expected = checksum([rows])
    assert checksum([shuffled[:cut], shuffled[cut:]]) == expected
    assert checksum([shuffled], flush_bytes=700, _MAX_SORTED_BYTES=900) == expected
