"""The drift of twenty years of dumps, field by field, and the rules that submissions meet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines.engine.config import make_config
from pipelines.errors import UsageError
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.decision import make_filter
from pipelines.stages.scrape.submission import BadLineError, Submission, parse_line, parse_submission

_RECORD: dict[str, Any] = {
    "id": "7a",
    "created_utc": 1509494400,
    "url": "http://example.com/page",
    "domain": "example.com",
    "score": 7,
    "subreddit": "news",
    "title": "A title",
    "over_18": False,
    "is_self": False,
}


def _parsed(**changed: Any) -> Submission:
    return parse_submission({**_RECORD, **changed})


def test_a_plain_record() -> None:
    assert _parsed() == Submission(
        id="7a",
        created_utc=1509494400,
        url="http://example.com/page",
        domain="example.com",
        score=7,
        subreddit="news",
        title="A title",
        over_18=False,
        is_self=False,
    )


@pytest.mark.parametrize("value", [1509494400, "1509494400", 1509494400.0, "1509494400.0", 1509494400.9])
def test_created_utc_is_a_number_or_a_string(value: Any) -> None:
    assert _parsed(created_utc=value).created_utc == 1509494400


@pytest.mark.parametrize("value", [None, "", "soon", True, -1, 10**12, float("nan"), float("inf"), 10**400, [], {}])
def test_an_unusable_created_utc_makes_a_bad_line(value: Any) -> None:
    with pytest.raises(BadLineError, match=r"^no_created_utc$"):
        _parsed(created_utc=value)


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (3, 3),
        ("3", 3),
        (3.0, 3),
        (-1, -1),
        (None, None),
        ("x", None),
        (True, None),
        (float("nan"), None),
        (2**63, None),
    ],
)
def test_score(value: Any, score: int | None) -> None:
    assert _parsed(score=value).score == score


@pytest.mark.parametrize("value", [None, "", 5, []])
def test_null_url_and_domain(value: Any) -> None:
    assert _parsed(url=value, domain=value).url is None
    assert _parsed(url=value, domain=value).is_self is False


def test_the_edited_url_is_used() -> None:
    assert _parsed(url="http://a.com/", url_overridden_by_dest="http://b.com/").url == "http://b.com/"
    assert _parsed(url=None, url_overridden_by_dest="http://b.com/").url == "http://b.com/"
    assert _parsed(url="http://a.com/", url_overridden_by_dest=None).url == "http://a.com/"


def test_a_crosspost_has_the_url_of_the_original_post() -> None:
    parent = {"id": "6z", "url": "http://outside.com/", "score": 900, "is_self": False}
    parsed = _parsed(url="/r/news/comments/6z/x/", crosspost_parent="t3_6z", crosspost_parent_list=[parent])
    assert (parsed.id, parsed.url, parsed.score) == ("7a", "http://outside.com/", 7)
    edited = {**parent, "url_overridden_by_dest": "http://edited.com/"}
    assert _parsed(crosspost_parent_list=[edited]).url == "http://edited.com/"
    assert _parsed(crosspost_parent_list=[{**parent, "url": None}]).url == "http://example.com/page"
    for empty in (None, [], [None], "t3_6z"):
        assert _parsed(crosspost_parent_list=empty).url == "http://example.com/page"


def test_a_crosspost_of_a_self_post_is_a_self_post() -> None:
    parent = {"url": "https://www.reddit.com/r/news/comments/6z/x/", "is_self": True}
    assert _parsed(crosspost_parent_list=[parent]).is_self
    assert _parsed(crosspost_parent_list=[{**parent, "is_self": None, "domain": "self.news"}]).is_self


def test_a_missing_is_self_is_inferred_from_the_domain() -> None:
    assert _parsed(is_self=True).is_self
    assert _parsed(is_self=None, domain="self.news").is_self
    assert not _parsed(is_self=None, domain="selfhost.com").is_self
    assert not _parsed(is_self=False, domain="self.news").is_self


def test_the_id_is_taken_from_either_field() -> None:
    record = {key: value for key, value in _RECORD.items() if key != "id"}
    assert parse_submission({**record, "name": "t3_9b"}).id == "9b"
    assert parse_submission({**record, "id": "t3_9b"}).id == "9b"
    for id in (None, "", 9):
        with pytest.raises(BadLineError, match=r"^no_id$"):
            parse_submission({**record, "id": id})


def test_missing_titles_and_subreddits_are_empty_and_missing_flags_false() -> None:
    parsed = _parsed(title=None, subreddit=None, over_18=None, promoted=None)
    assert (parsed.title, parsed.subreddit, parsed.over_18, parsed.promoted) == ("", "", None, None)
    assert _parsed(promoted=True).promoted
    assert _parsed(over_18=True).over_18


def test_lone_surrogates_are_replaced() -> None:
    parsed = parse_line(json.dumps({**_RECORD, "title": "x \ud83d y", "url": "http://example.com/\udc00"}).encode())
    assert parsed.title == "x \ufffd y"
    assert parsed.url == "http://example.com/\ufffd"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not_json"),
        (b'{"id": "\xff"}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"score": ' + b"9" * 5000 + b"}", "not_json"),
        (b"[1]", "not_an_object"),
        (b"null", "not_an_object"),
        (b"{}", "no_created_utc"),
    ],
)
def test_bad_lines(line: bytes, reason: str) -> None:
    with pytest.raises(BadLineError, match=f"^{reason}$"):
        parse_line(line)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"promoted": True}, "promoted"),
        ({"is_self": True}, "self_post"),
        ({"score": None}, "missing_score"),
        ({"score": 2}, "low_score"),
        ({"url": None}, "missing_url"),
        ({"url": "ftp://example.com/x"}, "not_http"),
        ({"url": "http://[IMG]http://i.imgur.com/x.jpg[/IMG]"}, "not_http"),
        ({"url": "https://old.reddit.com/r/x"}, "reddit_internal"),
        ({"url": "http://redd.it/x"}, "reddit_internal"),
        ({"url": "http://i.imgur.com/x"}, "media_host"),
        ({"url": "https://www.youtube.com/watch?v=x"}, "media_host"),
        ({"url": "http://mobile.twitter.com/x"}, "social_host"),
        ({"url": "http://example.com/a.JPG?size=2"}, "binary_file"),
        ({"url": "http://example.com/paper.pdf"}, "binary_file"),
        ({"url": "http://example.com/?file=a.pdf"}, None),
        ({"url": "http://example.com/a.pdf/comments"}, None),
        ({"url": "http://example.zip/"}, None),
        ({"created_utc": 1514764799}, None),
        ({"created_utc": 1514764800}, "after_2017"),
        ({"over_18": True}, "over_18"),
        # the first reason in the order of the docs is the one that is counted
        ({"is_self": True, "score": 1, "url": None}, "self_post"),
        ({"score": 1, "url": "http://i.imgur.com/x"}, "low_score"),
        ({"url": "http://i.imgur.com/x.jpg", "over_18": True}, "media_host"),
    ],
)
def test_the_default_rules(changed: dict[str, Any], reason: str | None) -> None:
    assert make_filter(ScrapeConfig()).apply(_parsed(**changed)).reason == reason


def test_without_a_profile_only_posts_without_a_link_are_dropped() -> None:
    filter = make_filter(ScrapeConfig(profile="none"))
    for url in ("http://i.imgur.com/x.jpg", "https://www.reddit.com/r/x", "http://example.com/a.pdf"):
        assert filter.apply(_parsed(url=url, over_18=True, created_utc=1700000000)).reason is None
    assert filter.apply(_parsed(is_self=True)).reason == "self_post"
    assert filter.apply(_parsed(promoted=True)).reason == "promoted"


def test_dates_are_utc_days_and_the_end_is_exclusive() -> None:
    filter = make_filter(ScrapeConfig(after="2017-11-01", before="2017-11-02"))
    reasons = [filter.apply(_parsed(created_utc=1509494400 + second)).reason for second in (-1, 0, 86399, 86400)]
    assert reasons == ["too_early", None, None, "too_late"]


def test_subreddits_are_matched_regardless_of_case_and_prefix() -> None:
    filter = make_filter(ScrapeConfig(subreddit=("News", "r/Science")))
    reasons = [filter.apply(_parsed(subreddit=name)).reason for name in ("news", "SCIENCE", "pics")]
    assert reasons == [None, None, "other_subreddit"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ScrapeConfig(after="2017-13-01"), "--after 2017-13-01: is not a day written YYYY-MM-DD"),
        (ScrapeConfig(before="20170101"), "--before 20170101: is not a day"),
        (ScrapeConfig(before="2017-1-5"), "--before 2017-1-5: is not a day"),
        (ScrapeConfig(after="2017-01-02", before="2017-01-02"), "is not earlier than --before"),
    ],
)
def test_days_that_cannot_apply_are_refused(config: ScrapeConfig, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_filter(config)


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        ({"source": "urls", "min_score": 5}, "--min-score has no effect without --source dump or praw"),
        ({"source": "urls", "subreddit": ("a",)}, "--subreddit"),
        ({"source": "urls", "refresh_scores": "praw"}, "--refresh-scores"),
        ({"url_column": "link"}, "--url-column has no effect without --source urls"),
        ({"limit": 5}, "--limit has no effect without --source praw"),
        ({"query": "a"}, "--query has no effect without --listing search"),
        ({"source": "praw", "host": ("a.com",)}, "--host"),
        ({"source": "praw", "api_url": "http://a"}, "--api-url"),
        ({"source": "praw", "listing": "new", "time_filter": "day"}, "--time-filter"),
        ({"source": "arctic-shift", "listing": "top"}, "--listing"),
    ],
)
def test_options_without_effect_are_refused(flags: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}.* has no effect" if " " not in option else option):
        make_config(ScrapeConfig, {}, flags, str)
    with pytest.raises(UsageError, match=f"ScrapeConfig: {list(flags)[-1]} has no effect without "):
        make_filter(ScrapeConfig(**flags))


@pytest.mark.parametrize(
    ("changed", "url"),
    [
        # The link outlived the post.
        (
            {"removed_by_category": "moderator", "_meta": {"removal_type": "removed"}, "title": "[removed]"},
            _RECORD["url"],
        ),
        ({"removed_by_category": "deleted", "author": "[deleted]", "selftext": "[deleted]"}, _RECORD["url"]),
        ({"_meta": {"was_deleted_later": True, "retrieved_2nd_on": 1706875209}, "url": None}, None),
    ],
)
def test_removed_posts_are_filtered_by_their_remaining_fields(changed: dict[str, Any], url: str | None) -> None:
    parsed = _parsed(**changed)
    assert (parsed.url, parsed.score, parsed.is_self) == (url, _RECORD["score"], False)


def test_very_long_names_are_bad_lines_and_very_long_titles_are_cut() -> None:
    assert len(_parsed(title="x" * 5000).title) == 4096
    assert _parsed(id="x" * 64, subreddit="y" * 128).subreddit == "y" * 128
    for changed, reason in (({"id": "x" * 65}, "long_id"), ({"subreddit": "y" * 129}, "long_subreddit")):
        with pytest.raises(BadLineError, match=reason):
            _parsed(**changed)
    for time in (4102444800, "99999999999", -1):
        with pytest.raises(BadLineError, match="no_created_utc"):
            _parsed(created_utc=time)
