"""What the metadata of a page is read from: dates, bylines and JSON-LD."""

from __future__ import annotations

import json

import pytest
from selectolax.lexbor import LexborHTMLParser

from pipelines.algorithms.web.metadata import (
    find_byline,
    find_date,
    is_byline,
    name_of,
    read_declared,
    split_names,
    typed_objects,
    types_of,
)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2021-03-04T23:30:00Z", "2021-03-04"),
        ("20210304", "2021-03-04"),
        ("2021年3月4日", "2021-03-04"),
        ("Stand: 4.3.2021, 12 Uhr", "2021-03-04"),
        ("26 | 01 | 2022", "2022-01-26"),
        ("5/6/2020", "2020-06-05"),  # the day comes first, if that is possible
        ("5/16/2020", "2020-05-16"),
        ("March 4th, 2021", "2021-03-04"),
        ("Thursday, 4 March 2021", "2021-03-04"),
        ("4. März 2021", "2021-03-04"),
        ("1er décembre 2020", "2020-12-01"),
        ("4 de marzo de 2021", "2021-03-04"),
        ("4 МАРТА 2021", "2021-03-04"),
        ("4 Sept. 2021", "2021-09-04"),
        ("4 października 2021", "2021-10-04"),
        ("Copyright 2023. 31.12.2022", "2022-12-31"),  # a year alone is not a date
    ],
)
def test_dates_as_pages_write_them(text, date):
    assert find_date(text) == date


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2021",
        "2021-13-45",
        "30.02.2021",
        "1970-01-01",
        "call 555 2020 1234",
        "12021-03-04",
        "0000-00-00",
        "4 NİSAN 2021",
        "Room 12 marketing 2019",
        "5 decoration 2020",
    ],
)
def test_what_is_not_a_date(text):
    assert find_date(text) is None


def test_only_the_first_years_are_searched():
    assert find_date("2020 " * 19 + "4.3.2021") == "2021-03-04"
    assert find_date("2020 " * 20 + "4.3.2021") is None


def test_the_names_in_a_byline():
    assert split_names("By Ada Lovelace and Charles Babbage") == ["Ada Lovelace", "Charles Babbage"]
    assert split_names("Von Anna Seghers, Heinrich Böll") == ["Anna Seghers", "Heinrich Böll"]
    assert split_names("Byron Katie") == ["Byron Katie"]  # "By" is a word of its own
    assert split_names("admin") == split_names("https://example.org/ada") == split_names("12 March") == []
    assert split_names("x" * 61) == []


def test_a_byline_in_running_text_has_full_names_and_ends_with_its_element():
    assert find_byline("River rises\nby Ada Lovelace\nThursday") == "Ada Lovelace"
    assert find_byline("written by hand") == ""
    assert is_byline("By Ludwig van Beethoven")
    assert not is_byline("By Ludwig")
    assert not is_byline("All articles by our staff")


def test_objects_of_json_ld_outer_first():
    graph = {"@graph": [{"@type": "Article", "author": {"@type": "Person", "name": "A"}}, {"@type": "WebSite"}]}
    objects = list(typed_objects(["not json", json.dumps(graph)]))
    assert [types_of(item) for item in objects] == [["Article"], ["WebSite"], ["Person"]]
    assert types_of({"@type": ["http://schema.org/Article", 5]}) == ["Article"]


def test_what_a_page_declares_in_the_head_or_after_it():
    # The frame ends the head, so that what follows is in the body.
    page = read_declared(
        LexborHTMLParser(
            '<head><iframe></iframe><svg><title>Icon</title></svg><title>River &amp; town</title><meta name="Author">'
            '<meta name="AUTHOR" content="Ada"><meta name="author" content="Eve"><meta itemprop="datePublished" '
            'content="x"><script type="application/ld+json">{"@type": "Article"}</script><script>{}</script></head>'
            '<a rel="nofollow author" href="/">Ada</a><b itemprop="author">Ada</b><h1>River</h1>'
        )
    )
    assert (page.title, page.objects) == ("River & town", [{"@type": "Article"}])
    assert page.meta == {"author": "Ada", "datepublished": "x"}
    assert [node.tag for node in page.nodes["author"]] == ["a", "b"]
    assert [node.text() for node in page.nodes["h1"]] == ["River"]


def test_names_in_json_ld():
    names = {"#ada": "Ada"}
    assert name_of("Ada &amp; Co", names) == "Ada & Co"
    assert name_of({"name": ["Ada", "Countess"]}, names) == "Ada"
    assert name_of({"@id": "#ada"}, names) == "Ada"
    assert name_of({"@id": ["#ada"]}, names) == name_of(None, names) == name_of([], names) == name_of(5, names) == ""


def test_hostile_json_ld():
    deep = "[" * 10_000 + "]" * 10_000
    nested = '{"a":' * 10_000 + '{"@type":"Article"}' + "}" * 10_000
    many = json.dumps([{"@type": "Article"}] * 20_000)
    assert list(typed_objects([deep, nested])) == []
    assert len(list(typed_objects([many]))) < 5_000
