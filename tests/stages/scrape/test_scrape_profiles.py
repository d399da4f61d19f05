"""The profiles: what each drops, checked against the docs, and what they follow of OpenAI's and others' lists."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.algorithms.web.urls import canonical_url, registered_domain
from pipelines.engine.config import identity_of
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, UsageError
from pipelines.stages.scrape import decision
from pipelines.stages.scrape.config import PROFILES, ScrapeConfig
from pipelines.stages.scrape.decision import (
    FilterResult,
    Profile,
    Rule,
    load_profile,
    make_filter,
    midnight_utc,
    resolve_config,
)
from pipelines.stages.scrape.stage import scrape
from pipelines.stages.scrape.submission import Submission
from pipelines.storage.resources import data_path

_PATTERNS = (r"https?://[a-z./]+", r"http://\S+", ".*pdf.*")
_HEAD = "version = 1\ndescription = 'Mine.'\nmin_score = 3\nkarma = 'max'\n"


def _submission(url: str, subreddit: str = "news", created_utc: int = 1500000000, over_18: bool = False) -> Submission:
    return Submission(id="a", created_utc=created_utc, url=url, score=9, subreddit=subreddit, over_18=over_18)


def _fits(rule: Rule, submission: Submission, url: str, domain: str) -> bool:
    """Tell whether one rule drops a submission, as the docs describe it."""
    submitted = submission.url or ""
    name = submission.subreddit.lower()
    last = urlsplit(url).path.rsplit("/", 1)[-1].lower()
    head = submitted.split("?")[0].lower()
    return (
        domain in rule.domains
        or urlsplit(url).hostname in rule.hosts
        or any(last.endswith(f".{extension}") for extension in rule.extensions)
        or any(head.endswith(f".{ending}") for ending in rule.endings)
        or (rule.shorter_than is not None and len(submitted) < rule.shorter_than)
        or (rule.unlike is not None and rule.unlike.fullmatch(submitted) is None)
        or (rule.created_from is not None and submission.created_utc >= midnight_utc(rule.created_from))
        or (rule.over_18 and submission.over_18)
        or name in rule.subreddits
        or (name not in rule.except_subreddits and any(word in name for word in rule.subreddit_words))
    )


def _by_loop(profile: Profile, submission: Submission, url: str, domain: str) -> str | None:
    return next((rule.name for rule in profile.rule if _fits(rule, submission, url, domain)), None)


def _first_match(profile: Profile, submission: Submission, url: str, domain: str) -> str | None:
    links = [(submission, FilterResult(None, url, domain))]
    return next((rule.name for rule in profile.rule if not rule.select(links)), None)


def _some(values: list[str]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(values), min_size=1, max_size=3)


_CONDITIONS = st.one_of(
    st.fixed_dictionaries({"domains": _some(["a.com", "b.co.uk", "1.2.3.4", "c.org"])}),
    st.fixed_dictionaries({"hosts": _some(["www.a.com", "a.com", "b.co.uk", "x.c.org"])}),
    st.fixed_dictionaries({"extensions": _some(["pdf", "jpg", "com", "gz"])}),
    st.fixed_dictionaries({"endings": _some(["pdf", "jpg", "com", "gz"])}),
    st.fixed_dictionaries({"shorter_than": st.integers(1, 40)}),
    st.fixed_dictionaries(
        {
            "unlike": st.sampled_from(
                [re.compile(one, re.IGNORECASE) for one in (r"https?://[a-z./]+", r"http://\S+", ".*pdf.*")]
            )
        }
    ),
    st.fixed_dictionaries({"created_from": st.dates(dt.date(1970, 1, 1), dt.date(1970, 1, 4))}),
    st.just({"over_18": True}),
    st.fixed_dictionaries({"subreddits": _some(["news", "earthporn", "pics"])}),
    st.fixed_dictionaries(
        {"subreddit_words": _some(["porn", "new", "s"]), "except_subreddits": _some(["earthporn", "news"])}
    ),
)
_SUBMISSIONS = st.builds(
    _submission,
    st.builds(
        "{}{}{}".format,
        st.sampled_from(
            ["http://a.com", "https://WWW.a.com", "http://b.co.uk:8080", "http://1.2.3.4", "http://x.c.org"]
        ),
        st.sampled_from(["", "/", "/a", "/A.PDF", "/a.tar.gz", "/a.pdf/", "/.jpg", "/a.b/c", "/%2epdf", "/a.pdf%20"]),
        st.sampled_from(["", "?", "?q=a.pdf", "#x.jpg", "#!/x.jpg", "?a=b#!c.pdf", "?a/b.jpg", "&amp;b.gz", " .gz"]),
    ),
    subreddit=st.sampled_from(["news", "News", "EarthPorn", "pornpics", "", "other", "PICS"]),
    created_utc=st.sampled_from([0, 86_399, 86_400, 172_800, 259_199]),
    over_18=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_CONDITIONS, max_size=8), st.lists(_SUBMISSIONS, min_size=1, max_size=10))
def test_rules_drop_what_the_docs_say(conditions: list[dict[str, Any]], submissions: list[Submission]) -> None:
    rules = tuple(Rule(f"rule_{place}", **condition) for place, condition in enumerate(conditions))
    profile = Profile(1, "", 3, "max", rules)
    for submission in submissions:
        url = canonical_url(submission.url or "")
        if url is None:
            continue
        domain = registered_domain(url) or ""
        assert _first_match(profile, submission, url, domain) == _by_loop(profile, submission, url, domain)


def test_real_submissions_agree_with_the_loop_in_every_profile(shared_data: Path) -> None:
    names = set()
    profiles = [load_profile(name) for name in PROFILES]
    with (shared_data / "reddit" / "submissions-2013.ndjson.zst").open("rb") as raw:
        lines = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw)).readlines()
    for line in lines[::25]:
        record = json.loads(line)
        submission = _submission(record["url"], record["subreddit"], int(record["created_utc"]), record["over_18"])
        url = canonical_url(record["url"])
        if url is None:
            continue
        domain = registered_domain(url) or ""
        for profile in profiles:
            name = _by_loop(profile, submission, url, domain)
            assert _first_match(profile, submission, url, domain) == name
            names.add(name)
    assert {"media_host", "binary_file", "reddit_internal", "over_18", None} <= names


def _reasons(profile: str, *urls: str, **fields: Any) -> list[str | None]:
    filter = make_filter(ScrapeConfig(profile=profile))
    return [filter.apply(_submission(url, **fields)).reason for url in urls]


def test_openwebtext_matches_its_original_scripts() -> None:
    kept = ["http://example.com/a.html", "http://google.de/", "http://www.itunes.apple.com/x", "http://a.com/?f=a.pdf"]
    assert _reasons("openwebtext", *kept) == [None] * 4
    # Paths and hosts alike: what the submitted URL ends with before its `?` counts.
    ended = ["http://example.com/A.PY", "http://example.com/x#fig.svg", "http://example.ai", "http://a.com/b.tar.gz?x"]
    assert _reasons("openwebtext", *ended) == ["file_ending"] * 4
    assert _reasons("openwebtext", "http://example.ai/", "http://example.com/a.pdf/") == [None, None]
    banned = {
        "https://gist.github.com/x": "hard_to_scrape",
        "http://docs.google.com/x": "hard_to_scrape",
        "http://video.google.com/x": "media_subdomain",
        "http://itunes.apple.com/x": "media_subdomain",
        "http://flic.kr/p/x": "media_host",
        "http://www.ebay.com/x": "shop",
        "http://en.wikipedia.org/wiki/X": "wikipedia",
        "http://www.spotrac.com/x": "hard_to_scrape",
        "http://t.d": "short_url",
        "http://np.reddit.com/r/x": "reddit_internal",
    }
    assert _reasons("openwebtext", *banned) == [*list(banned.values())[:8], None, "reddit_internal"]
    assert _reasons("openwebtext", "http://t.d/", "http://t.d") == [None, None]
    assert _reasons("openwebtext", "http://a.b") == [None]
    assert _reasons("openwebtext", "http://a") == ["short_url"]
    assert _reasons("openwebtext", "http://example.com/", over_18=True) == ["over_18"]


def test_openwebtext2_matches_its_original_scripts() -> None:
    assert _reasons("openwebtext2", "http://example.com/", over_18=True) == [None]
    looks = [
        "http://a.bc",
        "HTTPS://A-B.example.com.:80/x?y",
        "http://1.2.3.4/x",
        "http://1.2.3.4:8080",
        "http://a.bc?x",
    ]
    assert _reasons("openwebtext2", *looks) == [None] * 5
    odd = [
        "http://localhost/page",
        "http://a_b.example.com/",
        "http://user:word@example.com/",
        "http://example.com/a b",
        "http://example.com#top",
        "http://bücher.example/",
        "http://-a.example.com/",
        "http://[2001:db8::1]/",
    ]
    assert _reasons("openwebtext2", *odd) == ["odd_url"] * 8
    # Listed in OpenWebText only.
    assert _reasons("openwebtext2", "http://www.ebay.com/x", "http://a.com/b.py", "http://flic.kr/p/x") == [None] * 3
    banned = ["http://gist.github.com/", "http://itunes.apple.com/x", "http://a.com/b.7Z", "http://de.wikipedia.org/"]
    assert _reasons("openwebtext2", *banned) == ["hard_to_scrape", "media_subdomain", "file_ending", "wikipedia"]


@pytest.mark.parametrize(
    ("profile", "given_options", "wanted"),
    [
        ("webtext-2019", {}, (3, "max")),
        ("openwebtext", {}, (3, "max")),
        ("openwebtext2", {}, (3, "sum")),
        ("none", {}, (3, "max")),
        ("openwebtext2", {"min_score": 0, "karma": "first"}, (0, "first")),
        ("none", {"min_score": 5}, (5, "max")),
    ],
)
def test_options_override_score_and_karma_of_the_profile(
    profile: str, given_options: dict[str, Any], wanted: tuple[int, str]
) -> None:
    config = resolve_config(ScrapeConfig(profile=profile, **given_options))
    assert (config.min_score, config.karma) == wanted
    assert resolve_config(config) == config
    assert (identity_of(config)["min_score"], identity_of(config)["karma"]) == wanted
    filter = make_filter(ScrapeConfig(profile=profile, **given_options))
    by_post = wanted[0] if wanted[1] == "max" else None
    assert (filter.karma, filter.min_score) == (wanted[1], by_post)
    assert filter.min_link_score == (None if wanted[1] == "max" else wanted[0])


def test_the_manifest_records_the_effective_values(tmp_path: Path) -> None:
    record = {"url": "http://example.com/", "created_utc": 1500000000, "subreddit": "news", "is_self": False}
    dump = tmp_path / "RS_2017-07.ndjson"
    dump.write_text(
        "".join(json.dumps({**record, "id": id, "score": score}) + "\n" for id, score in (("a", 1), ("b", 2)))
    )
    config = ScrapeConfig(profile="openwebtext2", shards=1)
    summary = scrape(config, dumps=[str(dump)], output=str(tmp_path / "out"), options=RunOptions())
    assert (summary.records_out, summary.dropped) == (1, {"merged_into_link": 1})
    recorded = read_manifest(str(tmp_path / "out")).identity.config
    assert (recorded["min_score"], recorded["karma"]) == (3, "sum")
    # What the profile says and what an option says is the same run, where they say the same.
    same = ScrapeConfig(profile="openwebtext2", shards=1, karma="sum", min_score=3)
    assert scrape(same, dumps=[str(dump)], output=str(tmp_path / "out"), options=RunOptions()).records_out == 1
    other = dataclasses.replace(config, karma="max")
    with pytest.raises(ChangedRunError, match='karma was "sum", is now "max"'):
        scrape(other, dumps=[str(dump)], output=str(tmp_path / "out"), options=RunOptions())


def test_lists_of_urls_have_no_score_whatever_the_profile() -> None:
    config = resolve_config(ScrapeConfig(source="urls", profile="openwebtext2"))
    assert (config.min_score, config.karma) == (None, None)
    filter = make_filter(config)
    assert (filter.min_score, filter.min_link_score, filter.needs_score) == (None, None, False)


def test_subreddits_of_pornography_and_hate_are_blocked_and_safe_ones_kept() -> None:
    taken = {"GoneWild": "explicit", "nsfw_gifs": "explicit", "PORN": "explicit", "Rule34": "explicit"}
    taken |= {"CoonTown": "blocked", "WatchPeopleDie": "blocked", "realgirls": "blocked", "FatPeopleHate": "blocked"}
    for name, kind in taken.items():
        (reason,) = _reasons("webtext-2019", "http://example.com/", subreddit=name)
        assert reason == {"explicit": "explicit_subreddit_name", "blocked": "blocked_subreddit"}[kind], name
    for name in (
        "EarthPorn",
        "FoodPorn",
        "MapPorn",
        "HistoryPorn",
        "pornfree",
        "sex",
        "AskWomen",
        "popcorn",
        "",
        "lgbt",
    ):
        assert _reasons("webtext-2019", "http://example.com/", subreddit=name) == [None], name


def test_subreddits_are_listed_once() -> None:
    rules = {rule.name: rule for rule in load_profile("webtext-2019").rule}
    words, exceptions = (
        rules["explicit_subreddit_name"].subreddit_words,
        rules["explicit_subreddit_name"].except_subreddits,
    )
    names = rules["blocked_subreddit"].subreddits
    assert names & exceptions == set()
    assert [name for name in names if any(word in name for word in words)] == []
    assert [name for name in exceptions if not any(word in name for word in words)] == []
    for profile in PROFILES:
        for table in tomllib.loads(Path(data_path(f"profiles/{profile}.toml")).read_text()).get("rule", []):
            for values in table.values():
                assert not isinstance(values, list) or len(set(values)) == len(values), (profile, table["name"])


def test_of_104_real_subreddits_none_is_blocked(shared_data: Path) -> None:
    # The most that any of them has of posts marked as adult is one in twenty.
    with (shared_data / "reddit" / "submissions-2013.ndjson.zst").open("rb") as raw:
        text = zstandard.ZstdDecompressor().stream_reader(raw).read().decode()
    names = set(re.findall(r'"subreddit": ?"([^"]+)"', text))
    assert len(names) == 104
    filter = make_filter(ScrapeConfig(profile="webtext-2019"))
    assert {filter.apply(_submission("http://example.com/", name)).reason for name in names} == {None}


def test_every_profile_can_be_read_and_every_file_is_a_choice() -> None:
    files = sorted(path.stem for path in Path(data_path("profiles")).glob("*.toml"))
    assert files == sorted(PROFILES)
    versions = {name: load_profile(name).version for name in PROFILES}
    assert versions == {"webtext-2019": 2, "openwebtext": 1, "openwebtext2": 1, "none": 2}
    assert all(load_profile(name).description for name in PROFILES)


def test_webtext_2019_blocks_no_domain_in_openais_list() -> None:
    # Of the 1,000 domains that OpenAI published, by their second-level names: the first hundred, and those beyond
    # that the community's block lists ban or that hold pictures, sound, video, links or adult pages.
    shown = """
    google archive blogspot github nytimes wordpress washingtonpost wikia bbc theguardian ebay pastebin cnn yahoo
    huffingtonpost go reuters imdb goo nih cbc apple medium dailymail steampowered independent etsy craigslist
    businessinsider telegraph wizards usatoday thehill nhl foxnews taobao bloomberg npr mlb latimes megalodon espn
    kickstarter breitbart abc newegg wwe myanimelist microsoft buzzfeed vice indiatimes forbes tappedout wsj vid battle
    adf politico redditgifts nexusmods goodreads magiccards nbcnews gamepedia mediafire time cbsnews ppy gstatic nfl
    steamusercontent thestar bugguide fanfiction mturk cbslocal theglobeandmail nydailynews theatlantic netflix theverge
    smh nbcsports cnbc slate ign dotabuff wired chicagotribune urbandictionary rt wuxiaworld wowhead wolframalpha
    guardian walmart pinterest rollingstone xkcd flic vidble oddshot plays ibb clyp postimg makeameme gph mixcloud
    nicovideo twitch hulu ustream grooveshark periscope tenor newgrounds sendvid streamja makeagif webmshare libsyn
    podbean gettyimages ted behance fav prnt redditpoll redditmetrics removeddit t bit tinyurl amzn linkedin patreon
    dropboxusercontent googleusercontent youtubedoubler imirhil openload xboxdvr subtletv neatclip roosterteeth vlive
    mediacru picsarus supload viewsync memedad memecrunch chzbgr knowyourmeme ceddit go1dfish voat 4chan omegle
    youporn xnxx eporner xtube tube8 youjizz ashemaletube myvidster nhentai e-hentai hentai-foundry donmai derpibooru
    livejournal typepad weibo op amazonaws cloudfront zippyshare thepiratebay torrentfreak wikileaks wiktionary
    """.split()
    rules = load_profile("webtext-2019").rule
    banned = {name.split(".")[-2] for rule in rules for name in (*rule.domains, *rule.hosts)}
    assert len(banned) > 30
    assert banned & set(shown) == set()


def test_other_profiles_block_domains_in_openais_list() -> None:
    listed = ["http://google.com/", "http://github.com/", "http://walmart.com/", "http://xkcd.com/1/"]
    assert _reasons("webtext-2019", *listed) == [None] * 4
    for profile in ("openwebtext", "openwebtext2"):
        assert _reasons(profile, *listed) == ["hard_to_scrape"] * 4


def _load(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    (folder / "mine.toml").write_text(text)
    monkeypatch.setattr(decision, "data_path", lambda _: str(folder / "mine.toml"))
    return load_profile("mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]\n", ": is not valid TOML .Expected ']]'"),
        ("rules = []\n", ": contains unknown field `rules`; did you mean rule.$"),
        ("version = 1\n", ": missing required field `description`"),
        (_HEAD.replace("3", "-1"), ": min_score = -1: expected a whole number >= 0"),
        (_HEAD.replace("max", "mean"), ": karma = 'mean': expected a string matching regex '.*max.sum.first"),
        (_HEAD.replace("version = 1", "version = true"), ": version = true: expected a whole number"),
        (_HEAD + "[[rule]]\ndomains = ['a.com']\n", r" \[rule 1\]: missing required field `name`"),
        (
            _HEAD + "[[rule]]\nname = 'x'\ndomain = ['a.com']\n",
            r" \[rule 1\]: contains unknown field `domain`; did you mean domains",
        ),
        (_HEAD + "[[rule]]\nname = 'x'\n", r" \[rule 1\]: rule 'x' has 0 conditions, expected 1"),
        (_HEAD + "[[rule]]\nname = 'x'\nover_18 = true\ndomains = ['a.com']\n", "has 2 conditions"),
        (_HEAD + "[[rule]]\nname = 'x'\ndomains = ['A.com']\n", r"domains = .*: expected a string matching"),
        (_HEAD + "[[rule]]\nname = 'x'\nextensions = ['tar.gz']\n", "extensions = .*: expected a string matching"),
        (_HEAD + "[[rule]]\nname = 'x'\nunlike = '('\n", "not a regular expression .*unterminated subpattern"),
        (_HEAD + "[[rule]]\nname = 'x'\nshorter_than = true\n", "shorter_than = true: expected a whole number"),
        (_HEAD + "[[rule]]\nname = 'x'\ncreated_from = '2018-01-01'\n", "created_from = '2018-01-01': expected a day"),
        (_HEAD + "[[rule]]\nname = 'x'\nsubreddits = ['a']\nexcept_subreddits = ['b']\n", "requires subreddit_words"),
        (
            _HEAD + "[[rule]]\nname = 'x'\nover_18 = true\n[[rule]]\nname = 'x'\nover_18 = true\n",
            "two rules have the same name",
        ),
    ],
)
def test_a_wrong_profile_is_refused_with_the_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=f"mine.toml{message}" if message[0] == ":" else f"mine.toml.*{message}"):
        _load(text, tmp_path, monkeypatch)


def test_a_day_starts_at_midnight_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = _load(_HEAD + "[[rule]]\nname = 'x'\ncreated_from = 2018-01-01\n", tmp_path, monkeypatch)
    first = int(dt.datetime(2018, 1, 1, tzinfo=dt.UTC).timestamp())
    for created_utc, reason in ((first - 1, None), (first, "x")):
        asked = _submission("http://example.com/", created_utc=created_utc)
        assert _first_match(profile, asked, "http://example.com/", "example.com") == reason


def test_the_docs_name_every_profile_rule_and_condition() -> None:
    docs = Path(__file__).parents[3] / "docs"
    text = (docs / "scrape-profiles.md").read_text()
    for name in PROFILES:
        profile = load_profile(name)
        head = rf"\| `{name}`[^|]* \| {profile.version} \| {profile.min_score} \| `{profile.karma}` \|"
        assert re.search(head, text), name
        assert [rule.name for rule in profile.rule if f"`{rule.name}`" not in text] == []
    conditions = [name for name in Rule.__struct_fields__ if name != "name"]
    formats = (docs / "formats.md").read_text()
    assert [name for name in conditions if not re.search(rf"`{name}\b", formats)] == []
    rules = {rule.name: rule for rule in load_profile("webtext-2019").rule}
    assert f"{len(rules['blocked_subreddit'].subreddits)} subreddits that are known" in text
    assert f"except {len(rules['explicit_subreddit_name'].except_subreddits)} that are safe" in text
