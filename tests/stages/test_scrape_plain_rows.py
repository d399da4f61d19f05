"""Rows with plain URLs are judged by columns as `Selection.judge_url` judges them one by one."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.web.plain_urls import plain_hosts, simplify
from pipelines.algorithms.web.urls import canonical_url, host_of
from pipelines.stages.scrape.config import PROFILES, ScrapeConfig
from pipelines.stages.scrape.plain_rows import PlainRowJudge, plain_urls, simplified_urls
from pipelines.stages.scrape.reading import Rejects
from pipelines.stages.scrape.scanning import Lines, scanned_lines
from pipelines.stages.scrape.selection import Selection, make_selection, resolved
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, bucket_of_domain, submission_batch

_URL = st.lists(
    st.sampled_from(
        [
            "http://",
            "https://",
            "HTTP://",
            "a.com",
            "WWW.Imgur.com",
            "i.imgur.com",
            "de.wikipedia.org",
            "bbc.co.uk",
            "itunes.apple.com",
            "reddit.com",
            "1.2.3.4",
            "xn--a.com",
            "a_b.com",
            "x" * 64 + ".com",
            "/",
            "/page",
            ".html",
            ".JPG",
            ".mp3",
            ".",
            "/.",
            "..",
            "?",
            "a=1",
            "&",
            "&amp;",
            "&amp;amp;",
            "&&amp;#39;",
            "&lt;",
            "&#33;",
            "&excl;",
            "&Tab;",
            "amp;" * 1100,
            ";",
            "#",
            "#!",
            "#x",
            "utm_source=x",
            "UTM_x",
            "fbclid=1",
            "%41",
            "%2f",
            " ",
            "é",
            "\t",
            ":80",
            ":8080",
            "@",
            "\\",
            "'",
            "~",
            "//",
        ]
    ),
    max_size=9,
).map("".join)
_SUBMISSION = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["a", "b1", "zz"]),
        "created_utc": st.sampled_from([1500000000, 1514764799, 1514764800]),
        "url": _URL | st.just("http://www.example.com/2013/05/a-page.html"),
        "score": st.sampled_from([5, 0, None]),
        "subreddit": st.sampled_from(["Python", "gonewild", "EarthPorn", "nsfw_gifs", "été"]),
        "title": st.sampled_from(["A title", 'with "escapes"', "日本", "\ud83d half"]),
        "over_18": st.booleans(),
        "is_self": st.just(False),
    }
)


def _selection(profile: str) -> Selection:
    return make_selection(resolved(ScrapeConfig(profile=profile)))


def _lines(records: list[dict[str, Any]]) -> Lines:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    rejects: Any = Rejects.__new__(Rejects)  # no line is bad, so nothing is written
    (lines,) = scanned_lines(io.BytesIO(data), rejects)
    return lines


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=150, deadline=None)
@given(records=st.lists(_SUBMISSION, min_size=1, max_size=12))
def test_columns_are_judged_as_rows_are(profile: str, records: list[dict[str, Any]]) -> None:
    selection, lines = _selection(profile), _lines(records)
    judge = PlainRowJudge(selection.profile.tables, 7)
    found = [plain_urls(lines, np.arange(len(records)))]
    if not judge.needs_submitted:
        found.append(simplified_urls(lines, np.setdiff1d(np.arange(len(records)), found[0].rows)))
    for urls in found:
        dropped: Counter[str] = Counter()
        rows = judge.judge(lines, urls, dropped)
        judged = [(each, selection.judge_url(each)) for each in map(lines.submission, urls.rows.tolist())]
        kept = [(submission, verdict) for submission, verdict in judged if verdict.reason is None]
        assert dropped == Counter(verdict.reason for _, verdict in judged if verdict.reason is not None)
        assert rows.batch.schema == SUBMISSION_SCHEMA
        expected = submission_batch(kept).to_pylist() if kept else []
        actual = rows.batch.to_pylist()
        assert actual == expected
        assert rows.buckets.tolist() == [bucket_of_domain(row["domain"], 7) for row in actual]


def test_the_host_of_a_row_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.stages.scrape.plain_rows._REMEMBERED_HOSTS", 3)
    judge = PlainRowJudge(_selection("none").profile.tables, 5)
    records = [
        {"id": f"{n}", "created_utc": 1, "url": f"http://h{n % 7}.com/{n}", "score": 3, "domain": "x"}
        for n in range(40)
    ]
    lines = _lines(records)
    rows = judge.judge(lines, plain_urls(lines, np.arange(40)), Counter())
    assert rows.batch.column("domain").to_pylist() == [f"h{n % 7}.com" for n in range(40)]
    assert len(judge._hosts) <= 3


@settings(max_examples=400, deadline=None)
@given(st.lists(_URL, max_size=8))
def test_a_simplified_url_that_is_plain_is_the_canonical_one(urls: list[str]) -> None:
    encoded = [url.encode() for url in urls]
    ends = np.cumsum([0, *map(len, encoded)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64)
    simpler = np.zeros(int(ends[-1]) + len(urls) + 64, np.uint8)
    found, hosts = np.zeros_like(spans), np.zeros_like(spans)
    simplify(np.frombuffer(b"".join(encoded) + bytes(64), np.uint8), spans, simpler, found)
    plain_hosts(simpler, found, hosts)
    for url, (start, stop), (first, last) in zip(urls, found.tolist(), hosts.tolist(), strict=True):
        if last:
            assert simpler[start:stop].tobytes().decode() == canonical_url(url)
            assert simpler[first:last].tobytes().decode() == host_of(canonical_url(url) or "")
