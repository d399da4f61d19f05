"""The page of documents: filters, orders, pages and counts, all of which are in its URL."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("starlette")
from browser_client import open_client
from listed_corpus import DOCUMENTS, document, id_of, write_corpus
from starlette.testclient import TestClient

from pipelines.algorithms.quality.redaction import SPAN_TYPE


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return open_client(str(write_corpus(tmp_path_factory.mktemp("browse") / "corpus")))


def _numbers(page: str) -> list[int]:
    return [int(id, 16) for id in re.findall(r'class="row" href="/document\?id=([0-9a-f]{32})', page)]


def _link(page: str, relation: str) -> str | None:
    match = re.search(rf'<a rel="{relation}" href="([^"]*)"', page)
    return html.unescape(match[1]) if match else None


def _pages(client: TestClient, address: str, relation: str = "next") -> Iterator[list[int]]:
    """Yield the documents of a page and of those to which it leads."""
    following: str | None = address
    while following:
        page = client.get(following).text
        yield _numbers(page)
        following = _link(page, relation)


def test_a_page_shows_where_texts_begin_and_what_is_special(client: TestClient) -> None:
    page = client.get("/documents").text
    assert _numbers(page) == list(range(20))
    assert "40 documents" in page
    assert "Text 8 begins here." in page
    assert '<span class="badge">noai</span>' in page
    assert "2017-01-31" in page


@pytest.mark.parametrize(
    "query", ["", "sort=words", "sort=-words", "sort=score", "sort=-date", "sort=domain", "random=3", "stage=extract"]
)
def test_pages_have_every_document_once_in_both_directions(client: TestClient, query: str) -> None:
    pages = list(_pages(client, f"/documents?{query}"))
    numbers = [number for page in pages for number in page]
    assert sorted(numbers) == list(range(DOCUMENTS if "extract" in query else 40))
    last = f"/documents?{query}"
    while following := _link(client.get(last).text, "next"):
        last = following
    assert list(_pages(client, last, "prev"))[::-1] == pages


def test_documents_are_sorted(client: TestClient) -> None:
    numbers = [number for page in _pages(client, "/documents?sort=words") for number in page]
    assert numbers == sorted(range(40), key=lambda number: (-document(number)["words"], number))
    assert _numbers(client.get("/documents?sort=score").text)[0] == 0
    assert _numbers(client.get("/documents?sort=-date&stage=extract").text)[0] == 0
    assert _numbers(client.get("/documents?sort=date&stage=extract").text)[0] == DOCUMENTS - 1


def test_a_random_order_is_that_of_its_seed(client: TestClient) -> None:
    first, again, other = (_numbers(client.get(f"/documents?random={seed}").text) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("language=de", lambda row: row["language"] == "de"),
        ("domain=SECOND.example", lambda row: row["domain"] == "second.example"),
        ("subreddit=Python", lambda row: "Python" in row["subreddits"]),
        ("year=2018", lambda row: 12 < int(row["id"], 16) < 25),
        ("page_type=article&words_min=3&words_max=5", lambda row: row["page_type"] and 3 <= row["words"] <= 5),
        ("page_type=(unknown)", lambda row: row["page_type"] is None),
        ("score_min=70&score_max=80", lambda row: 70 <= row["score"] <= 80),
        ("license=mit", lambda row: False),
    ],
)
def test_filters_choose_documents(client: TestClient, query: str, expected: object) -> None:
    matches = [number for number in range(40) if expected(document(number))]  # type: ignore[operator]
    assert [number for page in _pages(client, f"/documents?{query}") for number in page] == matches
    page = client.get(f"/documents?{query}").text
    assert f"<strong>{len(matches)} document" in page
    if not matches:
        assert "No document meets these conditions." in page


def test_facets_count_the_chosen_documents_and_lead_to_them(client: TestClient) -> None:
    page = client.get("/documents?language=de").text
    part = html.unescape(re.search(r'data-load="([^"]*facet=domain)"', page)[1])  # type: ignore[index]
    facet = client.get(part).text
    links = {name: (html.unescape(link), int(count)) for link, name, count in _facet_rows(facet)}
    assert {name: count for name, (_, count) in links.items()} == {"first.example": 9, "second.example": 5}
    for link, count in links.values():
        assert len(_numbers(client.get(link).text)) == count
    [(link, name, count)] = _facet_rows(client.get("/documents/facet?facet=language&language=de").text)
    assert (link, name.strip(), count) == ("/documents", "de ×", "14")
    subreddits = _facet_rows(client.get("/documents/facet?facet=subreddit").text)
    assert [(name, count) for _, name, count in subreddits] == [("news", "40"), ("Python", "20")]
    [_, (link, name, count)] = _facet_rows(client.get("/documents/facet?facet=page_type").text)
    assert (name, count) == ("(unknown)", "8")
    assert len(_numbers(client.get(html.unescape(link)).text)) == 8


def _facet_rows(page: str) -> list[tuple[str, str, str]]:
    return re.findall(r'<li><a href="([^"]*)"[^>]*>(.*?)</a> <span>(.*?)</span>', page)


def test_the_form_and_the_links_keep_the_state(client: TestClient) -> None:
    page = client.get("/documents?language=de&sort=words&stage=extract&words_min=1").text
    assert 'name="words_min" size="8" value="1"' in page
    assert '<option value="words" selected' in page
    assert '<option value="extract" selected' in page
    state = _link(page, "next")
    assert state is None
    next_page = _link(client.get("/documents?sort=words&stage=extract").text, "next")
    assert next_page is not None
    assert next_page.startswith("/documents?stage=extract&sort=words&after=")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("year=(none)", "Year: expected a number"),
        ("stage=dedupe", "did you mean dedup?"),
        ("stage=fetch", "unknown stage"),
        ("sort=words;DROP", "unknown order"),
        ("sort=quality", "unknown order"),
        ("quality_min=0.5", "the documents of dedup have no column quality"),
        ("after=x", "is not a whole number"),
        ("after=999", "there is no document 999"),
        ("random=-1", "is not a whole number"),
        ("words_min=" + "9" * 5000, "Words from: expected a number"),
    ],
)
def test_bad_parameters_are_named(client: TestClient, query: str, message: str) -> None:
    answer = client.get(f"/documents?{query}")
    assert answer.status_code == 400
    assert message in answer.text


def test_a_wrong_value_stays_in_the_form_next_to_what_is_wrong(client: TestClient) -> None:
    answer = client.get("/documents?words_min=<x&language=de")
    assert answer.status_code == 400
    assert 'name="words_min" size="8" value="&lt;x" aria-invalid="true" aria-describedby="problem"' in answer.text
    assert 'name="language" size="8" value="de">' in answer.text
    assert 'id="problem">Words from: expected a number, found &#39;&lt;x&#39;<' in answer.text
    assert "No document meets" not in answer.text


def test_text_and_parameters_are_never_markup(client: TestClient) -> None:
    page = client.get("/documents", params={"domain": "<b>\"'"}).text + client.get("/documents").text
    page += client.get("/documents?language=en%00%1b").text
    for text in ("<b>", "<script>alert", "<img", "\u202e", "\x1b", "\x00"):
        assert text not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\\u202e" in page


def test_documents_of_other_programs_have_the_filters_of_their_columns(tmp_path: Path) -> None:
    rows = [{"id": f"d{number}", "text": "word " * number, "score": "high"} for number in range(1, 30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "own.parquet")
    client = open_client([str(tmp_path / "own.parquet")])
    page = client.get("/documents").text
    assert 'name="words_min"' in page
    assert 'name="language"' not in page
    ids = [
        id
        for address in ("/documents", _link(page, "next"))
        for id in re.findall(r"\?id=(d\d+)", client.get(address or "").text)
    ]
    assert ids == [row["id"] for row in rows]
    assert re.findall(r"\?id=(d\d+)", client.get("/documents?words_min=28").text) == ["d28", "d29"]
    assert "have no column language" in client.get("/documents?language=en").text


def test_a_document_is_opened_by_its_id_and_url(client: TestClient) -> None:
    assert f'href="/document?id={id_of(3)}&amp;url=http%3A%2F%2Ffirst.example%2F3"' in client.get("/documents").text


def test_quality_and_redactions_of_filtered_documents(tmp_path: Path) -> None:
    qualities = [None, 0.05, 0.5, 0.95]
    spans = [[{"kind": "email", "start": 0, "end": 3}] * number for number in range(4)]
    columns = {
        "id": pa.array([f"d{number}" for number in range(4)]),
        "text": pa.array(["one two"] * 4),
        "quality": pa.array(qualities, pa.float32()),
        "redactions": pa.array(spans, SPAN_TYPE),
    }
    pq.write_table(pa.table(columns), tmp_path / "filtered.parquet")
    client = open_client([str(tmp_path / "filtered.parquet")])

    def ids(query: str) -> list[str]:
        return re.findall(r"\?id=(d\d)", client.get(f"/documents?{query}").text)

    assert ids("sort=quality") == ["d3", "d2", "d1", "d0"]
    assert ids("sort=-quality") == ["d1", "d2", "d3", "d0"]
    assert ids("sort=-quality&after=2") == ["d2", "d3", "d0"]  # after d1
    assert ids("sort=-quality&before=1") == ["d1", "d2", "d3"]  # before d0, whose quality is not known
    assert ids("quality_min=0.3") == ["d2", "d3"]
    page = client.get("/documents").text
    assert "2 redactions" in page
    assert "0.95" in page


def test_documents_of_one_day_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    columns = {
        "id": [id_of(number) for number in range(45)],
        "text": ["one two"] * 45,
        "created_utc": [1_483_260_000 - number for number in range(45)],
    }
    pq.write_table(pa.table(columns), tmp_path / "day.parquet")
    pages = _pages(open_client([str(tmp_path / "day.parquet")]), "/documents?sort=-date")
    assert [number for page in pages for number in page] == [*reversed(range(45))]


def test_a_time_that_is_none_has_no_year(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "text": ["one", "two"], "created_utc": [10**17, 1_500_000_000]})
    pq.write_table(table, tmp_path / "times.parquet")
    client = open_client([str(tmp_path / "times.parquet")])
    assert "(unknown)" in client.get("/documents/facet?facet=year").text
    assert re.findall(r"\?id=(\w)", client.get("/documents?year=2017").text) == ["b"]


@pytest.mark.parametrize("id", ["https://example.com/page", " spaced "])
def test_a_document_is_opened_by_any_id(tmp_path: Path, id: str) -> None:
    pq.write_table(pa.table({"id": [id], "text": ["one two"]}), tmp_path / "ids.parquet")
    client = open_client([str(tmp_path / "ids.parquet")])
    [link] = re.findall(r'class="row" href="([^"]*)"', client.get("/documents").text)
    assert "one two" in client.get(html.unescape(link)).text


def test_rules_need_the_text_that_the_filter_read(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    assert "/document/rules?" in open_client(str(corpus)).get(f"/document?id={id_of(1)}").text
    assert "/document/rules?" not in open_client([str(corpus / "filter")]).get(f"/document?id={id_of(1)}").text


def test_documents_of_the_same_id_have_their_own_pages(tmp_path: Path) -> None:
    urls, texts = ["http://a.example/", "javascript:b", None], ["first", "second", "third"]
    pq.write_table(pa.table({"id": ["a", "a", "c"], "url": urls, "text": texts}), tmp_path / "ids.parquet")
    client = open_client([str(tmp_path / "ids.parquet")])
    links = re.findall(r'class="row" href="([^"]*)"', client.get("/documents").text)
    for link, text in zip(links, texts, strict=True):
        assert text in client.get(html.unescape(link)).text
