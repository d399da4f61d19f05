"""Scrape as a whole on small files: the merge, the funnel, bad lines, damaged files, standard input."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from compressed_files import write_compressed

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.folder_lock import folder_lock
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions, Summary
from pipelines.errors import ChangedRunError, InputError, LockedError, UsageError, WebtextError
from pipelines.progress import Silent
from pipelines.records.schemas import LINK_SCHEMA
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape

pytestmark = pytest.mark.usefixtures("warm_processes")

_FIRST_SECOND = 1509494400


def _record(id: str, url: str | None = None, score: int | None = 10, second: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "url": url if url is not None else f"http://example.com/{id}",
        "score": score,
        "created_utc": _FIRST_SECOND + second,
        "subreddit": f"r{id}",
        "author": f"Author {id}",
        "title": f"Title {id}",
        "is_self": False,
        "over_18": False,
        **fields,
    }


def _ndjson(records: list[Any]) -> bytes:
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in records).encode()


def _write(folder: Path, name: str, records: list[Any]) -> str:
    return str(write_compressed(folder, name, _ndjson(records)))


def _scrape(dumps: list[str], output: Path, options: RunOptions | None = None, **config: Any) -> Summary:
    config = {"profile": "none", "shards": 4, **config}
    summary = scrape(ScrapeConfig(**config), dumps=dumps, output=str(output), options=options or RunOptions())
    assert summary.records_in == summary.records_out + sum(summary.dropped.values())
    return summary


def _links(output: Path) -> dict[str, dict[str, Any]]:
    rows = [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]
    links = {row.pop("url"): row for row in rows}
    assert len(links) == len(rows)
    return links


def _rejects(output: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(output / "rejects-00000.parquet").to_pylist()
    return rows


def test_all_submissions_of_a_url_make_one_link(tmp_path: Path) -> None:
    dump = _write(
        tmp_path,
        "RS_2017-11.zst",
        [
            _record("c", "http://Example.com/x?utm_source=reddit", 5, 20, over_18=True, author=None),
            _record("b", "http://example.com/x#top", 9, 10),
            _record("d", "http://example.com/x", 4, 10),
            _record("a", "http://example.com/x?a=1&amp;b=2", 4),
        ],
    )
    summary = _scrape([dump], tmp_path / "out")
    assert (summary.records_in, summary.records_out, summary.dropped) == (4, 2, {"merged_into_link": 2})
    assert _links(tmp_path / "out") == {
        "http://example.com/x": {
            "original_url": "http://example.com/x#top",
            "domain": "example.com",
            "score": 9,
            "submission_ids": ["b", "d", "c"],
            "subreddits": ["rb", "rd", "rc"],
            "authors": ["Author b", "Author d", ""],
            "title": "Title b",
            "created_utc": _FIRST_SECOND + 10,
            "over_18": True,
        },
        "http://example.com/x?a=1&b=2": {
            "original_url": "http://example.com/x?a=1&amp;b=2",
            "domain": "example.com",
            "score": 4,
            "submission_ids": ["a"],
            "subreddits": ["ra"],
            "authors": ["Author a"],
            "title": "Title a",
            "created_utc": _FIRST_SECOND,
            "over_18": False,
        },
    }


@pytest.mark.parametrize(
    ("karma", "links", "dropped"),
    [
        # max judges each submission: the one below the limit is not part of the link
        ("max", {"/x": (7, ["b", "c"]), "/y": (3, ["f"])}, {"low_score": 4, "merged_into_link": 1}),
        # the others judge the link, with all of its submissions
        ("sum", {"/x": (13, ["a", "b", "c"]), "/y": (5, ["d", "f"]), "/z": (4, ["e", "g"])}, {"merged_into_link": 4}),
        ("first", {}, {"low_score": 7}),
    ],
)
def test_karma(tmp_path: Path, karma: str, links: dict[str, Any], dropped: dict[str, int]) -> None:
    scores = [
        ("a", "/x", 1),
        ("b", "/x", 7),
        ("c", "/x", 5),
        ("d", "/y", 2),
        ("e", "/z", 2),
        ("f", "/y", 3),
        ("g", "/z", 2),
    ]
    records = [_record(id, f"http://example.com{url}", score, n) for n, (id, url, score) in enumerate(scores)]
    dump = _write(tmp_path, "RS_2017-11.gz", records)
    if not links:
        with pytest.raises(WebtextError, match=r"all 7 records were dropped \(low_score 7\)"):
            _scrape([dump], tmp_path / "out", karma=karma)
        return
    summary = _scrape([dump], tmp_path / "out", karma=karma)
    found = {url.removeprefix("http://example.com"): link for url, link in _links(tmp_path / "out").items()}
    assert {url: (link["score"], link["submission_ids"]) for url, link in found.items()} == links
    assert summary.dropped == dropped


def test_the_first_submission_decides_with_karma_first(tmp_path: Path) -> None:
    records = [
        _record("b", "http://a.com/", 3, 0),
        _record("a", "http://a.com/", 2, 0),
        _record("c", "http://b.com/", 3),
    ]
    dump = _write(tmp_path, "RS_2017-11.gz", records)
    summary = _scrape([dump], tmp_path / "out", karma="first")
    assert summary.dropped == {"low_score": 2}
    assert list(_links(tmp_path / "out")) == ["http://b.com/"]


def test_a_submission_in_two_dumps_counts_once_with_its_higher_score(tmp_path: Path) -> None:
    early = _write(tmp_path, "RS_2017-11.zst", [_record("a", "http://a.com/", 3), _record("b", "http://a.com/", 1)])
    late = _write(
        tmp_path, "again/RS_2017-11.zst", [_record("a", "http://a.com/", 8), _record("b", "http://a.com/", 2)]
    )
    for order, output in (([early, late], "one"), ([late, early], "two")):
        summary = _scrape(order, tmp_path / output, karma="sum")
        assert summary.dropped == {"duplicate_submission": 2, "merged_into_link": 1}
        (link,) = _links(tmp_path / output).values()
        assert (link["score"], link["submission_ids"]) == (10, ["a", "b"])
    assert read_manifest(str(tmp_path / "one")) == read_manifest(str(tmp_path / "two"))


def test_links_are_sorted_and_all_of_a_domain_are_in_one_shard(tmp_path: Path) -> None:
    urls = [f"http://{host}.site{number % 7}.com/{number}" for number in range(60) for host in ("www", "a")]
    dump = _write(tmp_path, "RS_2017-11.xz", [_record(f"{n:04d}", url) for n, url in enumerate(urls)])
    _scrape([dump], tmp_path / "out")
    shards_of: dict[str, set[str]] = {}
    for path in sorted((tmp_path / "out").glob("links-*.parquet")):
        table = pq.read_table(path)
        assert table.schema.equals(LINK_SCHEMA)
        assert table["url"].to_pylist() == sorted(table["url"].to_pylist())
        for domain in table["domain"].to_pylist():
            shards_of.setdefault(domain, set()).add(path.name)
    assert len(shards_of) == 7
    assert all(len(names) == 1 for names in shards_of.values())


def test_equal_bytes_for_any_workers_and_order(tmp_path: Path) -> None:
    paths = []
    for month in range(4):
        records = [
            _record(f"{month}{n:03d}", f"http://s{n % 5}.com/{n * 7919 % 90}", n % 12, n * 31 % 50, title=f"t{n % 3}")
            for n in range(300)
        ]
        paths.append(_write(tmp_path, f"RS_2017-0{month + 1}.zst", [*records, "{broken"]))
    _scrape(paths, tmp_path / "one")
    _scrape(paths[::-1], tmp_path / "three", RunOptions(executor=LocalExecutor(3)))
    names = sorted(path.name for path in (tmp_path / "one").glob("*.parquet"))
    assert [name for name in names if not name.startswith("links")] == [
        "files-00000.parquet",
        "months-00000.parquet",
        "rejects-00000.parquet",
    ]
    for name in names:
        wanted = (tmp_path / "one" / name).read_bytes()
        assert (tmp_path / "three" / name).read_bytes() == wanted
    assert read_manifest(str(tmp_path / "three")) == read_manifest(str(tmp_path / "one"))
    assert not [path.name for path in (tmp_path / "one").iterdir() if path.name.startswith("_")]


def test_bad_lines_are_counted_and_listed(tmp_path: Path) -> None:
    long = '{"id": "' + "é" * 300
    lines = [_record("a"), "", "{broken", _record("b", created_utc="never"), "[]", long, _record("c")]
    dump = _write(tmp_path, "RS_2017-11.bz2", lines)
    other = _write(tmp_path, "RS_2017-12.bz2", [_record("d"), '{"created_utc": 5}'])
    summary = _scrape([other, dump], tmp_path / "out")
    assert (summary.records_in, summary.records_out, summary.dropped) == (8, 3, {"bad_line": 5})
    rejects = _rejects(tmp_path / "out")
    assert [(row["file"], row["line"], row["reason"]) for row in rejects] == [
        ("RS_2017-11.bz2", 3, "not_json"),
        ("RS_2017-11.bz2", 4, "no_created_utc"),
        ("RS_2017-11.bz2", 5, "not_an_object"),
        ("RS_2017-11.bz2", 6, "not_json"),
        ("RS_2017-12.bz2", 2, "no_id"),
    ]
    assert [row["text"] for row in rejects if row["reason"] == "not_json"] == ["{broken", long[:200]]
    assert "rejects-00000.parquet" in [file.name for file in read_manifest(str(tmp_path / "out")).files]


@pytest.mark.parametrize(
    ("good", "bad", "passes"), [(20, 9, True), (989, 10, False), (990, 10, True), (1989, 21, False)]
)
def test_more_than_one_percent_of_bad_lines_fails_the_file(tmp_path: Path, good: int, bad: int, passes: bool) -> None:
    dump = _write(tmp_path, "RS_2017-11.zst", [*(_record(f"{n}") for n in range(good)), *["oops"] * bad])
    if passes:
        assert _scrape([dump], tmp_path / "out").dropped == {"bad_line": bad}
        return
    with pytest.raises(InputError, match=rf"RS_2017-11.zst: {bad} of its {good + bad:,} lines are not submissions"):
        _scrape([dump], tmp_path / "out")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "RS_2017-11.json: contains no lines"),
        (["oops", "oops"], "RS_2017-11.json: 2 of its 2 lines are not submissions"),
        ([_record("a", "")], r"RS_2017-11.json: no line has a usable `url` \(of 1 line\)"),
        (
            [_record("a", score=None), _record("b", score=None)],
            r"RS_2017-11.json: no line has a usable `score` \(of 2 lines\)",
        ),
        (
            [{"id": "c1", "body": "a comment", "score": 4, "created_utc": 1}],
            r"no line has a usable `url` \(of 1 line\)",
        ),
    ],
)
def test_a_file_of_other_data_is_refused_by_name(tmp_path: Path, records: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _scrape([_write(tmp_path, "RS_2017-11.json", records)], tmp_path / "out")


@pytest.mark.parametrize("suffix", [".zst", ".xz", ".bz2", ".gz"])
@pytest.mark.parametrize("damage", ["truncated", "corrupt"])
def test_a_damaged_file_is_refused_by_name_and_offset(tmp_path: Path, suffix: str, damage: str) -> None:
    records = [_record(f"{n}", title=f"{n * 7919 % 65537:x}" * 9) for n in range(500)]
    path = Path(_write(tmp_path, f"RS_2017-11{suffix}", records))
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) * 2 // 3]
    else:
        data[len(data) // 2 : len(data) // 2 + 40] = b"\xa5" * 40
    path.write_bytes(data)
    # What was decoded before the damage is not taken for the whole, whichever worker met it.
    with pytest.raises(InputError, match=rf"RS_2017-11{suffix}: is truncated or corrupt near compressed byte \d+"):
        _scrape([str(path)], tmp_path / "out")
    assert not list((tmp_path / "out").glob("links-*"))


def test_records_with_null_and_empty_fields_are_counted(tmp_path: Path) -> None:
    records = [_record("a"), _record("b", score=None), _record("c", url=""), _record("d", promoted=True)]
    summary = _scrape([_write(tmp_path, "RS_2022-08.zst", records)], tmp_path / "out")
    assert summary.dropped == {"missing_score": 1, "missing_url": 1, "promoted": 1}


def test_only_dumps_of_submissions_are_read_from_folders_and_globs(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    names = ["RS_1.zst", "RS_2.xz", "RS_3.bz2", "deep/RS_4.gz", "RS_5.json", "RS_6.ndjson", "RS_7.jsonl", "RS_8"]
    for number, name in enumerate(names):
        _write(folder, name, [_record(f"{number}")])
    for name in ("RC_2017-11.zst", "RS_1.zst.sha256", "README", "notes.txt", ".hidden.zst"):
        (folder / name).write_bytes(b"no dump")
    assert _scrape([str(folder)], tmp_path / "folder").records_in == 8
    assert _scrape([str(folder / "*")], tmp_path / "glob").records_in == 7
    (folder / "some name").write_bytes(_ndjson([_record("z")]))
    assert _scrape([str(folder / "some name")], tmp_path / "named").records_in == 1
    with pytest.raises(InputError, match=r"nowhere: no such file or folder"):
        _scrape([str(tmp_path / "nowhere")], tmp_path / "out")
    with pytest.raises(InputError, match=r"\*.parquet: matches no file of submissions"):
        _scrape([str(folder / "*.parquet")], tmp_path / "out")
    with pytest.raises(UsageError, match="no dumps were named"):
        _scrape([], tmp_path / "out")


def test_a_changed_dump_or_profile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (_write(tmp_path, f"RS_2017-1{n}.zst", [_record(f"{n}")]) for n in (1, 2))
    _scrape([one], tmp_path / "out")
    with pytest.raises(ChangedRunError, match=r"its input 'RS_2017-11.zst' was removed"):
        _scrape([two], tmp_path / "out")
    with pytest.raises(ChangedRunError, match='profile was "none", is now "webtext-2019"'):
        _scrape([one], tmp_path / "out", profile="webtext-2019")
    profiles = tmp_path / "data"
    (profiles / "profiles").mkdir(parents=True)
    (profiles / "profiles" / "none.toml").write_text(
        "version = 9\ndescription = ''\nmin_score = 3\nkarma = 'max'\n[[rule]]\nname = 'x'\nover_18 = true\n"
    )
    monkeypatch.setattr("pipelines.stages.scrape.decision.data_path", lambda name: str(profiles / name))
    with pytest.raises(ChangedRunError, match="its input 'profile none' has changed"):
        _scrape([one], tmp_path / "out")


def _pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_standard_input_is_a_dump_with_a_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _ndjson([_record("a"), _record("b", score=1)])
    _pipe(monkeypatch, data)
    summary = _scrape(["-"], tmp_path / "out")
    assert (summary.records_in, summary.records_out) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    _pipe(monkeypatch, data)
    assert _scrape(["-"], tmp_path / "out").records_out == 1
    _pipe(monkeypatch, data + _ndjson([_record("c")]))
    with pytest.raises(ChangedRunError, match=r"its input 'stdin.ndjson.zst' has changed"):
        _scrape(["-"], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_standard_input_that_is_empty_or_compressed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pipe(monkeypatch, b"")
    with pytest.raises(InputError, match="standard input: is empty"):
        _scrape(["-"], tmp_path / "out")
    for pack, kind in (
        (zstandard.compress, "zstd"),
        (lzma.compress, "xz"),
        (bz2.compress, "bzip2"),
        (gzip.compress, "gzip"),
    ):
        _pipe(monkeypatch, pack(_ndjson([_record("a")])))
        with pytest.raises(InputError, match=f"standard input: contains {kind} data"):
            _scrape(["-"], tmp_path / "out")
    with folder_lock(str(tmp_path / "out-stdin")), pytest.raises(LockedError):
        _scrape(["-"], tmp_path / "out")


def test_a_corpus_next_to_the_dumps_is_not_read_as_dumps(tmp_path: Path) -> None:
    _write(tmp_path, "RS_2017-11.zst", [_record("a")])
    _write(tmp_path, "deep/RS_2017-12.zst", [_record("b")])
    for folder in ("corpus/scrape", "other/scrape"):
        assert _scrape([str(tmp_path)], tmp_path / folder).records_in == 2
    (tmp_path / "begun" / "scrape" / "_journal").mkdir(parents=True)
    (tmp_path / "begun" / "scrape" / "_journal" / "read--RS_2017-11.zst.json").write_text("{}")
    (tmp_path / "begun" / "scrape" / "_work").mkdir()
    (tmp_path / "begun" / "scrape" / "_work" / "stats-1.json").write_text("{}")
    assert _scrape([str(tmp_path)], tmp_path / "again").records_in == 2


def test_archives_and_wrong_suffixes_are_named(tmp_path: Path) -> None:
    data = _ndjson([_record("a")])
    tar = b"RS_2017-11".ljust(257, b"\0") + b"ustar\x0000" + bytes(247) + data
    for name, content, message in [
        ("RS_2017-11.zip", b"PK\x03\x04" + data, r"\.zip: is a zip archive; unpack it first"),
        ("RS_2017-11", zstandard.compress(data), r"contains zstd data; rename it to end in \.zst"),
        ("RS_2017-11.gz", bz2.compress(data), r"contains bzip2 data; rename it to end in \.bz2"),
        ("RS_2017-11.json", tar, "is a tar archive; unpack it first"),
        ("RS_2017-11.tar.gz", gzip.compress(tar), "is a tar archive; unpack it first"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            _scrape([str(path)], tmp_path / "out")


def test_accepted_problems_are_reported_again(tmp_path: Path) -> None:
    said: list[str] = []

    class Notes(Silent):
        def note(self, message: str) -> None:
            said.append(message)

    dump = _write(tmp_path, "RS_2017-11.zst", [*(_record(f"{n}") for n in range(90)), *["oops"] * 10])
    for _ in range(2):
        said.clear()
        _scrape([dump], tmp_path / "out", RunOptions(progress=Notes()), skip_damaged=True)
    assert said == [
        "scrape: already complete; checksums verified",
        "using the readable part of 1 damaged files; see files-00000.parquet",
    ]
