"""Tables of submissions: the columns of public CSV and Parquet files give what the same submissions of a dump give."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compressed_files import write_compressed
from scrape_run import Notes, read_links, read_table, run_scrape, write_dump

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from webtext_cli.main import main

_DUMP = [
    {"id": "4hqz1x", "url": "http://bbc.co.uk/news/1", "score": 7, "created_utc": 1462270260, "title": 'A "title"'},
    {"id": "4hqz1y", "url": "http://bbc.co.uk/news/1", "score": 3, "created_utc": 1462270320, "title": "Again"},
    {"id": "4hqz1z", "url": "http://low.example/", "score": 2, "created_utc": 1462270380, "title": "Low"},
    {"id": "4hqz20", "url": "http://none.example/", "score": None, "created_utc": 1462270440, "title": "No score"},
    {"id": "4hqz21", "url": "https://www.reddit.com/r/news/comments/4hqz21/text/", "score": 9,
     "created_utc": 1462270500, "title": "A text", "is_self": True, "domain": "self.news"},
    {"id": "4hqz22", "url": "http://adult.example/", "score": 9, "created_utc": 1462270560, "over_18": True,
     "title": "x"},
]  # fmt: skip


def _permalink(post: dict[str, Any]) -> str:
    return f"https://www.reddit.com/r/news/comments/{post['id']}/a_title/"


def _date(post: dict[str, Any]) -> str:
    return dt.datetime.fromtimestamp(post["created_utc"], dt.UTC).strftime("%Y-%m-%d %H:%M")


# As in https://github.com/umbrae/reddit-top-2.5-million, SocialGrep's exports, Watchful1's to_csv.py, a set on Kaggle.
_LAYOUTS = {
    "top": lambda post: {
        "created_utc": f"{post['created_utc']}.0", "score": post["score"], "domain": post.get("domain", "x.example"),
        "id": post["id"], "ups": 100, "permalink": _permalink(post), "over_18": bool(post.get("over_18")),
        "is_self": bool(post.get("is_self")), "name": f"t3_{post['id']}", "url": post["url"], "title": post["title"],
    },
    "socialgrep": lambda post: {
        "type": "post", "id": post["id"], "subreddit.id": "2qh1i", "subreddit.name": "news",
        "subreddit.nsfw": str(bool(post.get("over_18"))).lower(), "created_utc": post["created_utc"],
        "permalink": _permalink(post), "domain": post.get("domain", "x.example"), "url": post["url"],
        "selftext": "several\nlines", "title": post["title"], "score": post["score"],
    },
    "to_csv": lambda post: {
        "author": "", "title": post["title"], "Score": post["score"], "created": _date(post),
        "link": _permalink(post), "text": "", "url": post["url"], "is_self": post.get("is_self"),
        "over_18": post.get("over_18"),
    },
    "kaggle": lambda post: {
        "title": post["title"], "upvotes": post["score"], "id": post["id"], "url": post["url"], "comms_num": 6,
        "timestamp": f"{_date(post)}:00+00:00", "is_self": post.get("is_self"), "nsfw": post.get("over_18"),
        "subreddit": "news",
    },
}  # fmt: skip


def _csv_text(rows: list[dict[str, Any]], separator: str = ",") -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _drops(output: Path) -> dict[str, int]:
    dropped: dict[str, int] = json.loads((output / "manifest.json").read_text())["dropped"]
    return dropped


@pytest.mark.parametrize("name", ["posts.csv", "posts.csv.gz", "posts.csv.zst"])
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_a_table_gives_what_the_same_submissions_of_a_dump_give(tmp_path: Path, name: str, layout: str) -> None:
    dump = write_dump(tmp_path, "RS_2016-05.zst", [{"subreddit": "news", **post} for post in _DUMP])
    table = write_compressed(tmp_path, name, _csv_text([_LAYOUTS[layout](post) for post in _DUMP]))
    config = {"profile": "webtext-2019", "karma": "sum"}
    run_scrape([dump], tmp_path / "dump", **config)
    run_scrape([table], tmp_path / "table", **config)
    assert read_links(tmp_path / "table") == read_links(tmp_path / "dump")
    assert _drops(tmp_path / "table") == _drops(tmp_path / "dump")
    assert _drops(tmp_path / "dump")["missing_score"] == 1


def test_parquet_and_tsv_are_tables_too(tmp_path: Path) -> None:
    rows = [
        {"url": post["url"], "score": post["score"], "id": post["id"], "title": "t", "subreddit": "news"}
        for post in _DUMP
    ]
    dates = [dt.datetime.fromtimestamp(post["created_utc"], dt.UTC) for post in _DUMP]
    table = pa.Table.from_pylist(rows).append_column("created_utc", pa.array(dates, pa.timestamp("ns")))
    pq.write_table(table, tmp_path / "posts.parquet")
    seconds = [{**row, "created_utc": post["created_utc"]} for row, post in zip(rows, _DUMP, strict=True)]
    (tmp_path / "posts.tsv").write_text(_csv_text(seconds, "\t"))
    for name in ("posts.parquet", "posts.tsv"):
        run_scrape([tmp_path / name], tmp_path / f"{name}-out", profile="webtext-2019")
    links = read_links(tmp_path / "posts.parquet-out")
    assert links == read_links(tmp_path / "posts.tsv-out")
    assert links["http://bbc.co.uk/news/1"]["submission_ids"] == ["4hqz1x", "4hqz1y"]
    assert links["http://bbc.co.uk/news/1"]["created_utc"] == 1462270260


def test_a_table_without_ids_dates_and_subreddits_has_scores(tmp_path: Path) -> None:
    (tmp_path / "posts.csv").write_text("url,score\nhttp://a.com/,2\nhttp://a.com/,2\nhttp://b.com/,2\n")
    run_scrape([tmp_path / "posts.csv"], tmp_path / "out", karma="sum")
    [(url, link)] = read_links(tmp_path / "out").items()
    assert (url, link["score"], link["submission_ids"], link["created_utc"]) == ("http://a.com/", 4, [], 0)
    assert read_table(tmp_path / "out", "months") == []


def test_rows_that_are_no_submission_are_listed(tmp_path: Path) -> None:
    good = "http://a.com/,5,1462270260,a1\n"
    bad = [
        "http://a.com/,5,yesterday,a2\n",
        "http://a.com/,5\n",
        "http://a.com/,5,1462270260,\n",
    ]
    (tmp_path / "posts.csv").write_text("url,score,created_utc,id\n" + good + "".join(bad))
    run_scrape([tmp_path / "posts.csv"], tmp_path / "out")
    rejects = [(row["line"], row["reason"], row["text"]) for row in read_table(tmp_path / "out", "rejects")]
    reasons = ["no_created_utc", "bad_csv", "no_id"]
    assert rejects == [
        (number, reason, row.strip()) for number, reason, row in zip(range(3, 6), reasons, bad, strict=True)
    ]


_TIMES = ["1331042771000", "2012-03-06 14:06:11 UTC", "2012-03-06T14:06:11Z", "1331042771.0", ""]


def test_times_are_read_in_the_forms_of_public_tables_and_may_lack(tmp_path: Path) -> None:
    rows = "".join(f"http://{number}.com/,5,news,{time}\n" for number, time in enumerate(_TIMES))
    (tmp_path / "posts.csv").write_text("url,score,subreddit,date\n" + rows)
    run_scrape([tmp_path / "posts.csv"], tmp_path / "out")
    links = read_links(tmp_path / "out")
    assert [links[f"http://{number}.com/"]["created_utc"] for number in range(5)] == [1331042771] * 4 + [0]
    assert {(*link["subreddits"], *link["submission_ids"]) for link in links.values()} == {("news",)}
    assert [month["month"] for month in read_table(tmp_path / "out", "months")] == ["2012-03"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("url,score,date\nhttp://a.com/,5,03/06/2012 14:06\n", r"\(date '03/06/2012 14:06' in line 2 is no time\); re"),
        ("url,score,id\nhttp://a.com/,5,\n", r"1 of its 1 lines are not submissions \(more than 1%\); replace"),
        ("id;url;score\na1;http://a.com/;5\n", r"\(it has id;url;score\); separate its columns by commas"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "posts.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        run_scrape([tmp_path / "posts.csv"], tmp_path / "out")


def test_a_name_is_an_id_only_if_it_looks_like_one(tmp_path: Path) -> None:
    rows = "http://a.com/,5,t3_a1\nhttp://b.com/,5,Jane\n"
    (tmp_path / "posts.csv").write_text("url,score,name\n" + rows)
    run_scrape([tmp_path / "posts.csv"], tmp_path / "out")
    links = read_links(tmp_path / "out")
    assert [links[f"http://{name}.com/"]["submission_ids"] for name in "ab"] == [["a1"], []]


def test_tables_of_something_else_in_a_folder_are_ignored(tmp_path: Path) -> None:
    (folder := tmp_path / "dd").mkdir()
    write_dump(folder, "posts.ndjson", _DUMP)
    (folder / "checksums.csv").write_text("file,sha256\nposts.ndjson,0\n")
    pq.write_table(pa.table({"n": [1]}), folder / "n.parquet")
    notes = Notes()
    run_scrape([folder], tmp_path / "out", RunOptions(progress=notes))
    assert [line.split(": has no column of urls")[0] for line in notes.lines if "ignored" in line] == [
        str(folder / "checksums.csv"),
        str(folder / "n.parquet"),
    ]
    with pytest.raises(InputError, match="has no column of urls"):
        run_scrape([folder / "checksums.csv"], tmp_path / "named")


def test_a_table_without_scores_names_the_source_for_lists_of_urls(tmp_path: Path) -> None:
    path, notes = tmp_path / "urls.csv", Notes()
    path.write_text("url,title\nhttp://a.com/,A title\n")
    with pytest.raises(
        InputError, match=r"urls.csv: has no column of scores .*it has url, title\); use --source urls to keep all URLs"
    ):
        run_scrape([path], tmp_path / "out")
    run_scrape([path], tmp_path / "out", RunOptions(progress=notes), source="urls")
    assert notes.lines == []
    (tmp_path / "scores.csv").write_text("title,score\nA title,4\n")
    with pytest.raises(InputError, match=r"has no column of urls \(url, link_url, link\)"):
        run_scrape([tmp_path / "scores.csv"], tmp_path / "other")


def test_a_damaged_table_is_named_and_read_again_after_repair(tmp_path: Path) -> None:
    path = tmp_path / "posts.csv"
    path.write_text('url,score\nhttp://a.com/,5\nhttp://b.com/,"5\nhttp://c.com/,6\n')
    with pytest.raises(
        InputError, match=r"posts.csv: the row that begins in line 3 .*replace it and re-run, or use its"
    ):
        run_scrape([path], tmp_path / "out")
    assert run_scrape([path], tmp_path / "skipped", skip_damaged=True).records_out == 1
    path.write_text("url,score\nhttp://a.com/,5\nhttp://b.com/,5\n")
    assert run_scrape([path], tmp_path / "out").records_out == 2


def test_explain_reads_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "bare.csv").write_text("url,score\nhttp://a.com/,5\n")
    assert main(["scrape", "--explain", "http://a.com/", f"{tmp_path}/tables/bare.csv"]) == 0
    shown = capsys.readouterr().out
    assert "1970" not in shown
    assert "kept: link with score 5 (1 submission)" in shown
