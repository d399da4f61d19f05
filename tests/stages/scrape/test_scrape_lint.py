"""`--lint`: the table of months is the one that the scrape writes, and what it refuses is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.explain import lint
from pipelines.stages.scrape.stage import scrape

pytestmark = pytest.mark.usefixtures("warm_processes")

_OPTIONS = RunOptions()
_NOVEMBER_S, _SEPTEMBER_S = 1509494400, 1693526400


def _record(id: int, score: int | None = 5, created_utc: int = _NOVEMBER_S) -> dict[str, Any]:
    return {"id": f"{id:x}", "url": f"http://a.com/{id}", "score": score, "created_utc": created_utc}


def _dump(path: Path, lines: list[Any]) -> str:
    data = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines).encode()
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)
    return str(path)


def _lint(dumps: list[str], **fields: Any) -> dict[str, Any]:
    return lint(ScrapeConfig(**fields), dumps=dumps, output="nowhere", options=_OPTIONS)


def test_the_table_of_real_dumps_matches_the_scrape(shared_data: Path, tmp_path: Path) -> None:
    dumps = [str(shared_data / "reddit")]
    executor = LocalExecutor(2)
    with executor.persistent_workers():
        report = lint(ScrapeConfig(), dumps=dumps, output="nowhere", options=RunOptions(executor))
        scrape(ScrapeConfig(shards=1), dumps=dumps, output=str(tmp_path / "out"), options=RunOptions(executor))
    rows = pq.read_table(tmp_path / "out" / "months-00000.parquet").to_pylist()
    assert report["months"] == rows
    assert (len(rows), report["refused"]) == (85, [])
    assert sum(file["lines"] for file in report["files"]) == sum(row["submissions"] for row in rows) == 99101
    assert rows[0]["truncated"] is None
    august = next(row for row in rows if row["month"] == "2013-08")
    assert august["truncated"] == "nothing after day 20 of 31"


@pytest.mark.parametrize(
    ("lines", "fields", "refused"),
    [
        ([_record(n) for n in range(30)], {}, None),
        ([_record(n) for n in range(1980)] + ["oops"] * 20, {}, None),
        ([_record(n) for n in range(90)] + ["oops"] * 20, {}, "20 of its 110 lines are not submissions"),
        ([_record(n) for n in range(90)] + ["oops"] * 20, {"skip_damaged": True}, None),
        ([_record(n, 1, _SEPTEMBER_S) for n in range(1200)] + [_record(9999, 5, _SEPTEMBER_S)], {}, "2023-09: 0.1% of"),
        ([_record(n, 1) for n in range(1200)] + [_record(9999)], {"accept_fresh_scores": True}, None),
        ([_record(n, 1) for n in range(1200)] + [_record(9999, 9, 0)], {"before": "2017-11-01"}, None),
        ([_record(n, None) for n in range(5)], {}, "no line has a usable `score` (of 5 lines)"),
        ([], {}, "contains no lines"),
    ],
)
def test_lint_and_scrape_refuse_the_same_inputs(
    tmp_path: Path, lines: list[Any], fields: dict[str, Any], refused: str | None
) -> None:
    dump = _dump(tmp_path / "RS_2017-11.zst", lines)
    report = _lint([dump], profile="none", **fields)
    config = ScrapeConfig(profile="none", shards=1, **fields)
    if refused is None:
        assert report["refused"] == []
        scrape(config, dumps=[dump], output=str(tmp_path / "out"), options=_OPTIONS)
    else:
        (problem,) = report["refused"]
        assert refused in problem
        with pytest.raises(InputError) as error:
            scrape(config, dumps=[dump], output=str(tmp_path / "out"), options=_OPTIONS)
        assert problem.rstrip("?") in str(error.value)


def test_the_report_contains_damaged_files_and_bad_lines(tmp_path: Path) -> None:
    dump = _dump(tmp_path / "RS_2017-11.zst", [_record(1), "oops", "{}", _record(2), "{}"])
    cut = _dump(tmp_path / "RS_2017-12.zst", [_record(n) for n in range(3000)])
    whole = Path(cut).read_bytes()
    Path(cut).write_bytes(whole[: len(whole) * 2 // 3])
    report = _lint([dump, cut])
    sound, damaged = report["files"]
    assert sound == {
        "file": "RS_2017-11.zst",
        "lines": 5,
        "bad_lines": 3,
        "bad_reasons": {"no_created_utc": 2, "not_json": 1},
        "first_bad": {"file": "RS_2017-11.zst", "line": 2, "reason": "not_json", "text": "oops"},
        "damaged_at": None,
        "damage": None,
        "problem": None,
    }
    assert damaged["damaged_at"] == len(whole) * 2 // 3
    assert report["refused"] == [damaged["problem"]]
    assert report["months"][0]["truncated"] == f"RS_2017-12.zst is damaged near compressed byte {damaged['damaged_at']}"
    assert _lint([dump, cut], skip_damaged=True)["refused"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RS_2017-11.zst", "RS_2017-12.zst"]


def test_sources_without_months_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--lint reads files, and --source arctic-shift queries an API; scrape first"):
        _lint([], source="arctic-shift")
    with pytest.raises(UsageError, match=r"lists of URLs .* have none"):
        _lint(["x"], source="urls")
    with pytest.raises(UsageError, match="no dumps were named"):
        _lint([])
