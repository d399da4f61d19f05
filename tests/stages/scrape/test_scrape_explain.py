"""`--explain`: what it says of every URL is what the scrape really did."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from local_apis import ArcticShift
from scrape_run import records, write_dump

from pipelines.algorithms.web.urls import canonical_url, near_urls
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.stages.scrape import arctic_shift, scores
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.explain import explain
from pipelines.stages.scrape.stage import scrape
from pipelines.storage import compression

pytestmark = pytest.mark.usefixtures("warm_processes")

_FIRST_SECOND = 1483228800  # 2017-01-01
_DAY_S = 86400

_PAGES = [
    "http://example.com/a",
    "http://example.com/a?b=1",
    "https://news.example.org/2016/story",
    "http://i.imgur.com/x.jpg",
    "http://www.youtube.com/watch?v=1",
    "http://www.reddit.com/r/x/comments/1/",
    "http://b.example.net/caf%C3%A9",
    "http://c.example.net/it's",
    "http://d.example.net/film.mp4",
    "ftp://example.com/a",
]
_SPELLINGS = [
    lambda url: url,
    lambda url: url,
    lambda url: url.replace("example", "EXAMPLE"),
    lambda url: url + "#top",
    lambda url: url + ("&" if "?" in url else "?") + "utm_source=x",
    lambda url: url.replace("?", "?x=1&amp;"),
    lambda url: url.replace("%C3%A9", "é"),
    lambda url: url.replace("://", "://user@"),
]


def _random_record(random: random.Random) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": f"{random.randrange(200):x}",
        "url": random.choice(_SPELLINGS)(random.choice(_PAGES) + random.choice(["", "", "/1", "/2"])),
        "score": random.choice([0, 1, 1, 2, 2, 3, 12, None]),
        "created_utc": _FIRST_SECOND + random.randrange(500) * _DAY_S,
        "subreddit": random.choice(["python", "Programming", "gonewild", "news"]),
        "title": "é" * random.randrange(2),
        "is_self": random.random() < 0.05,
        "over_18": random.random() < 0.1,
    }
    if random.random() < 0.05:
        record["promoted"] = True
    if random.random() < 0.05:
        record["url"] = None
    return record


def _random_dumps(folder: Path, seed: int) -> list[str]:
    numbers = random.Random(seed)
    paths = []
    for name in ("RS_2017-01", "RS_2017-02.zst", "RS_2018-01.zst"):
        lines = []
        for _ in range(60):
            text = json.dumps(_random_record(numbers), ensure_ascii=numbers.random() < 0.5)
            lines.append(text.replace("/", "\\/") if numbers.random() < 0.2 else text)
        lines[7] = "{broken"
        lines[20] = ""
        data = "\n".join(lines).encode()
        (folder / name).write_bytes(zstandard.compress(data) if name.endswith(".zst") else data)
        paths.append(str(folder / name))
    return paths


def _links(output: Path) -> dict[str, dict[str, Any]]:
    return {
        row["url"]: row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()
    }


def _explain(config: ScrapeConfig, url: str, dumps: list[str], output: Path, **options: Any) -> dict[str, Any]:
    return explain(config, url, dumps=dumps, output=str(output), options=RunOptions(**options))


def _canonical_urls(dumps: list[str]) -> list[str | None]:
    """Return the canonical URL of each line, None where it has none."""
    lines = []
    for path in dumps:
        with compression.open_decompressed(path) as stream:
            lines += [line for line in stream if line.strip()]
    return [canonical_url(json.loads(line)["url"] or "") if line.startswith(b'{"') else None for line in lines]


_CONFIGS = [
    ScrapeConfig(shards=4),
    ScrapeConfig(shards=4, profile="none", karma="sum"),
    ScrapeConfig(shards=4, karma="first", min_score=2),
    ScrapeConfig(shards=4, profile="openwebtext2", after="2017-02-01", before="2018-03-01"),
    ScrapeConfig(shards=4, profile="openwebtext", subreddit=("python", "r/News")),
]


@pytest.mark.parametrize("number", range(len(_CONFIGS)))
def test_explanations_of_all_urls_match_the_scrape(tmp_path: Path, number: int) -> None:
    config = _CONFIGS[number]
    dumps = _random_dumps(tmp_path, number)
    summary = scrape(config, dumps=dumps, output=str(tmp_path / "out"), options=RunOptions())
    links = _links(tmp_path / "out")
    every = _canonical_urls(dumps)
    urls = {url for url in every if url is not None}
    assert len(urls) > 15
    assert len(links) > 3
    outcomes: Counter[str] = Counter()
    for url in sorted(urls):
        found = _explain(config, url, dumps, tmp_path / "out")
        assert found["canonical_url"] == url
        assert found["is_kept"] is (url in links), found["verdict"]
        outcomes.update(each["outcome"] for each in found["submissions"])
        assert found["result"] is not None
        assert found["result"]["differences"] == []
        assert found["result"]["link"] == links.get(url)
        if url in links:
            ids = [each["id"] for each in found["submissions"] if each["outcome"] in ("kept", "merged_into_link")]
            assert (found["score"], ids) == (links[url]["score"], links[url]["submission_ids"])
            assert found["verdict"].startswith(f"kept: link with score {found['score']} (")
        else:
            assert found["verdict"].startswith("dropped: ")
    # The explanations of all URLs add up to the funnel, but for the submissions that have no canonical URL.
    assert outcomes.pop("kept") == summary.records_out
    assert outcomes <= Counter(summary.dropped)
    assert (Counter(summary.dropped) - outcomes).total() == every.count(None)


def _dump(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps({"created_utc": _FIRST_SECOND} | each) + "\n" for each in records))
    return str(path)


def test_wording_of_the_verdict(tmp_path: Path) -> None:
    page = "http://example.com/"
    records = [
        {"id": "a", "url": page, "score": 1, "subreddit": "x"},
        {"id": "b", "url": page, "score": 2, "subreddit": "y"},
        {"id": "c", "url": "http://i.imgur.com/1", "score": 1, "subreddit": "x"},
        {"id": "d", "url": "http://self.example/", "score": 9, "subreddit": "x", "is_self": True},
    ]
    dumps = [_dump(tmp_path / "RS_2017-01", records)]
    out = tmp_path / "out"

    def verdict(url: str, **fields: Any) -> str:
        return _explain(ScrapeConfig(**fields), url, dumps, out)["verdict"]

    assert verdict(page) == "dropped: low_score"
    assert verdict(page, min_score=2) == "kept: link with score 2 (1 submission)"
    assert verdict(page, karma="sum") == "kept: link with score 3 (sum of 2 submissions)"
    assert verdict(page, subreddit=("x",), before="2016-01-01") == "dropped: too_late 1, other_subreddit 1"
    assert verdict("HTTP://I.imgur.com:80/1") == "dropped: low_score"
    assert verdict("http://self.example/") == "dropped: self_post"
    assert verdict("http://nowhere.example/") == "not found in 4 lines of 1 file"
    imgur = _explain(ScrapeConfig(), "http://i.imgur.com/1", dumps, out)
    assert (imgur["rule"], imgur["domain"], imgur["shard"], imgur["result"]) == ("media_host", "imgur.com", None, None)
    (only,) = imgur["submissions"]
    assert (only["file"], only["line"], only["id"], only["score"], only["outcome"]) == (
        "RS_2017-01",
        3,
        "c",
        1,
        "low_score",
    )
    assert json.loads(json.dumps(imgur))["submissions"][0]["outcome"] == "low_score"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RS_2017-01"]


def test_differences_of_a_finished_result_are_shown(tmp_path: Path) -> None:
    one = _dump(tmp_path / "RS_2017-01", [{"id": f"{n}", "url": f"http://a.com/{n}", "score": n} for n in range(9)])
    two = _dump(tmp_path / "RS_2017-02", [{"id": "z", "url": "http://b.com/", "score": 9}])
    out = tmp_path / "out"
    scrape(ScrapeConfig(shards=3, min_score=5), dumps=[one], output=str(out), options=RunOptions())
    found = _explain(ScrapeConfig(), "http://a.com/4", [one, two], out)
    assert found["is_kept"]
    assert found["result"] is not None
    assert found["result"]["link"] is None
    assert found["result"]["differences"] == [
        "min_score was 5, is now 3",
        "shards was 3, is now 64",
        "its input 'RS_2017-02' is new",
    ]
    found = _explain(ScrapeConfig(shards=3, min_score=5), "http://a.com/8", [one], out)
    assert found["result"] is not None
    assert found["result"]["link"] is not None
    assert (found["result"]["link"]["score"], found["result"]["differences"]) == (8, [])


def test_similar_urls_are_counted(tmp_path: Path) -> None:
    assert near_urls("https://www.hpb.com/heroes/?a=1") == (
        "http://hpb.com/heroes?a=1",
        "http://hpb.com/heroes/?a=1",
        "http://www.hpb.com/heroes?a=1",
        "http://www.hpb.com/heroes/?a=1",
        "https://hpb.com/heroes?a=1",
        "https://hpb.com/heroes/?a=1",
        "https://www.hpb.com/heroes?a=1",
    )
    assert near_urls("http://hpb.com/") == ("http://www.hpb.com/", "https://hpb.com/", "https://www.hpb.com/")
    urls = ["http://hpb.com/heroes/"] * 3 + ["HTTPS://hpb.com/heroes#x", "http://hpb.com/heroes/2", "http://x.com"]
    dump = _dump(tmp_path / "RS_2017-01", [{"id": f"{n}", "url": url, "score": 5} for n, url in enumerate(urls)])
    other = _dump(tmp_path / "RS_2017-02", [{"id": "z", "url": "http://hpb.com/heroes", "score": 5}])
    near = {"http://hpb.com/heroes/": 3, "http://hpb.com/heroes": 1, "https://hpb.com/heroes": 1}
    found = _explain(ScrapeConfig(), "https://www.hpb.com/heroes/", [dump, other], tmp_path / "out")
    assert (found["submissions"], found["near"], list(found["near"])) == ([], near, list(near))
    assert found["verdict"] == "not found in 7 lines of 2 files"
    found = _explain(ScrapeConfig(), "http://hpb.com/heroes/", [dump, other], tmp_path / "out")
    assert (len(found["submissions"]), found["near"]) == (3, dict.fromkeys(list(near)[1:], 1))
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    found = _explain(ScrapeConfig(source="urls"), "http://hpb.com/heroes", [str(tmp_path / "urls.txt")], tmp_path / "o")
    assert found["near"] == {"http://hpb.com/heroes/": 3, "https://hpb.com/heroes": 1}


def test_fresh_months_and_damaged_files_are_mentioned(tmp_path: Path) -> None:
    fresh = [{"id": f"{n:x}", "url": f"http://a.com/{n}", "score": 1, "created_utc": 1693526400} for n in range(1200)]
    fresh.append({"id": "old", "url": "http://a.com/7", "score": 5})
    dump = _dump(tmp_path / "RS_2023-09", fresh)
    out = tmp_path / "out"
    config = ScrapeConfig(profile="none")
    found = _explain(config, "http://a.com/8", [dump], out)
    assert found["verdict"] == "dropped: low_score"
    (note,) = found["notes"]
    assert note.startswith("the scores of 2023-09 look recorded at ingestion: 0.0% of 1,200 submissions have 3 points")
    assert note.endswith("scrape refuses the month without --refresh-scores or --accept-fresh-scores")
    config = dataclasses.replace(config, refresh_scores="arctic-shift")
    found = _explain(config, "http://a.com/8", [dump], out)
    assert (found["is_kept"], found["verdict"]) == (
        None,
        "open: depends on 1 submission after --refresh-scores arctic-shift fetched the score",
    )
    assert [each["outcome"] for each in found["submissions"]] == ["score_to_fetch"]
    found = _explain(config, "http://a.com/7", [dump], out)
    assert found["verdict"].startswith(
        "kept: link with score 5 (1 submission); and 1 submission after --refresh-scores"
    )
    data = zstandard.compress((tmp_path / "RS_2023-09").read_bytes())
    (tmp_path / "cut.zst").write_bytes(data[: len(data) // 2])
    found = _explain(ScrapeConfig(), "http://nowhere.com/", [str(tmp_path / "cut.zst")], out)
    assert "cut.zst: is truncated or corrupt near compressed byte" in found["notes"][0]
    assert found["notes"][0].endswith("scrape needs --skip-damaged to use the rest")


@pytest.mark.parametrize("karma", ["max", pytest.param("sum", marks=pytest.mark.slow)])
def test_fetched_scores_are_those_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, karma: str) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(arctic_shift, "REQUEST_DELAY_S", 0.0)
    scores._client.cache_clear()
    chance = random.Random(3)
    posts = records("2023-08", [chance.choice([0, 1, 2, 3, 90]) for _ in range(80)])
    for post in posts[::4]:
        post["url"] = f"http://i.imgur.com/{post['id']}"
    dump = str(write_dump(tmp_path, "RS_2023-08.zst", [{**post, "score": 1} for post in posts]))
    known = [post for number, post in enumerate(posts) if number % 7]
    config = ScrapeConfig(shards=2, karma=karma, refresh_scores="arctic-shift", profile="openwebtext")
    with ArcticShift(known).serving() as api:
        config = dataclasses.replace(config, api_url=api.address)
        summary = scrape(config, dumps=[dump], output=str(tmp_path / "out"), options=RunOptions())
    links = _links(tmp_path / "out")
    outcomes: Counter[str] = Counter()
    for url in sorted({post["url"] for post in posts}):
        found = _explain(config, url, [dump], tmp_path / "out")
        assert (found["is_kept"], found["score"]) == ((True, links[url]["score"]) if url in links else (False, None))
        assert found["result"] is not None
        assert (found["result"]["link"], found["result"]["differences"]) == (links.get(url), [])
        outcomes.update(each["outcome"] for each in found["submissions"])
    assert outcomes.pop("kept") == summary.records_out
    assert outcomes == Counter(summary.dropped)
    assert outcomes["score_not_found"] > 5
    found = _explain(config, posts[1]["url"], [dump], tmp_path / "elsewhere")
    assert {each["outcome"] for each in found["submissions"]} == {"score_to_fetch"}


def test_lists_of_urls(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("http://a.com/\nhttp://b.com/\nHTTP://A.com\nhttp://youtu.be/1\nftp://x\n")
    config = ScrapeConfig(source="urls")
    dumps = [str(tmp_path / "urls.txt")]
    found = _explain(config, "http://a.com/", dumps, tmp_path / "out")
    assert found["verdict"] == "kept: link without a score, listed 2 times"
    assert [(each["line"], each["outcome"]) for each in found["submissions"]] == [(1, "kept"), (3, "merged_into_link")]
    assert _explain(config, "http://a.com/", dumps, tmp_path / "out", executor=LocalExecutor(2)) == found
    found = _explain(config, "http://b.com", dumps, tmp_path / "out")
    assert (found["verdict"], found["lines"]) == ("kept: link without a score", 5)
    found = _explain(config, "http://youtu.be/1", dumps, tmp_path / "out")
    assert (found["verdict"], found["rule"]) == ("dropped: media_host", "media_host")


def test_errors(tmp_path: Path) -> None:
    dump = _dump(tmp_path / "RS_2017-01", [{"id": "a", "url": "http://a.com/", "score": 1}])
    comments = _dump(tmp_path / "comments", [{"id": "a", "body": "x", "score": 1}])
    for config, url, dumps, message in (
        (ScrapeConfig(), "example.com", [dump], "--explain example.com: not an http.s. URL"),
        (ScrapeConfig(source="praw"), "http://a.com/", [], "--explain reads files, and --source praw queries an API"),
        (ScrapeConfig(), "http://a.com/", [], "no dumps were named"),
    ):
        with pytest.raises(UsageError, match=message):
            _explain(config, url, dumps, tmp_path / "out")
    (note,) = _explain(ScrapeConfig(), "http://a.com/", [comments], tmp_path / "out")["notes"]
    assert "no line has a usable `url` (of 1 line)" in note


@pytest.mark.slow  # test_explanations_of_all_urls_match_the_scrape does the same with random submissions
def test_real_submissions_of_2013(shared_data: Path, tmp_path: Path) -> None:
    # Every explanation reads all lines, so a fifth of them.
    with compression.open_decompressed(str(shared_data / "reddit" / "submissions-2013.ndjson.zst")) as stream:
        sample = zstandard.compress(b"".join(itertools.islice(stream, 0, None, 5)))
    (tmp_path / "sample.zst").write_bytes(sample)
    dumps = [str(tmp_path / "sample.zst"), str(shared_data / "reddit" / "RS_v2_2005-07.xz")]
    config = ScrapeConfig(shards=2)
    scrape(config, dumps=dumps, output=str(tmp_path / "out"), options=RunOptions())
    links = _links(tmp_path / "out")
    several = max(links, key=lambda url: (len(links[url]["submission_ids"]), url))
    odd = min(url for url in links if url != links[url]["original_url"])
    for url in (several, odd):
        found = _explain(config, links[url]["original_url"], dumps, tmp_path / "out")
        ids = [each["id"] for each in found["submissions"] if each["outcome"] in ("kept", "merged_into_link")]
        assert (found["canonical_url"], found["score"], ids) == (url, links[url]["score"], links[url]["submission_ids"])
        assert found["result"] is not None
        assert found["result"]["link"] == links[url]
