"""What was dropped: rules by their counts, examples, and labels."""

from __future__ import annotations

import concurrent.futures
import html
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from browser_client import PORT, open_client
from listed_corpus import id_of, write_corpus
from starlette.testclient import TestClient

from pipelines import storage
from pipelines.corpus.drops import read_labels
from pipelines.errors import InputError

_ORIGIN = {"origin": f"http://127.0.0.1:{PORT}"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


@pytest.fixture
def client(corpus: Path) -> TestClient:
    return open_client(str(corpus))


def _buttons(page: str) -> list[str]:
    """Return the addresses to which the labels of a page are posted: right and wrong for each example."""
    return [html.unescape(target) for target in re.findall(r'formaction="([^"]*)"', page)]


def _rules(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr><th scope.*?</tr>", page)
    return [[cell.strip() for cell in re.findall(r">([^<>]+)<", row) if cell.strip()] for row in rows]


def test_the_rule_that_drops_most_is_named_first(client: TestClient, corpus: Path) -> None:
    page = client.get("/dropped").text
    assert "the rule that drops most is" in page
    none = "no labels yet"
    assert _rules(page) == [
        ["near_duplicate", "dedup", "10", "20.0%", none],
        ["too_short", "filter", "10", "16.7%", none],
    ]


@pytest.mark.parametrize(
    ("stage", "reason", "value"), [("filter", "too_short", "words 4"), ("dedup", "near_duplicate", "")]
)
def test_examples_have_the_value_that_decided_and_the_text(
    client: TestClient, stage: str, reason: str, value: str
) -> None:
    page = client.get(f"/dropped?stage={stage}&reason={reason}").text
    numbers = [int(id, 16) for id in re.findall(r'class="row"[^>]* href="/document\?id=(\w{32})"', page)]
    assert sorted(numbers) == list(range(40, 50) if stage == "filter" else range(50, 60))
    for number in numbers:
        assert f"Text {number} begins here." in page
        if stage == "filter":
            assert f"words {number} is below 50" in page
        else:
            assert f'<a href="/document?id={id_of(number - 50)}">http://first.example/{number - 50}</a>' in page
    other = client.get(f"/dropped?stage={stage}&reason={reason}&seed=2").text
    assert numbers != [int(id, 16) for id in re.findall(r'class="row"[^>]* href="/document\?id=(\w{32})"', other)]
    assert "seed=3#example-1" in other
    assert "seed=1" in other


def test_duplicates_of_a_domain_are_those_of_its_urls(client: TestClient) -> None:
    query = "stage=dedup&reason=near_duplicate&domain"
    page = client.get(f"/dropped?{query}=second.example").text
    assert "10 of them from second.example" in page
    following = html.unescape(re.findall(r'rel="next"[^>]* href="([^"]*)"', page)[0])
    assert following.startswith(f"/dropped?{query}=second.example&seed=2")
    answer = client.post(_buttons(page)[0], headers=_ORIGIN)
    assert answer.headers["location"] == f"/dropped?{query}=second.example&seed=1#example-2"
    assert "no document that dedup dropped" in client.get(f"/dropped?{query}=first.example").text


def test_labels_give_the_precision_of_a_rule(client: TestClient, corpus: Path) -> None:
    address = "/dropped?stage=filter&reason=too_short&seed=4"
    buttons = _buttons(client.get(address).text)
    assert len(buttons) == 20
    for number, button in enumerate([*buttons[0:16:2], buttons[17]]):
        answer = client.post(button, headers=_ORIGIN)
        assert answer.status_code == 303
        assert answer.headers["location"].endswith(f"&seed=4#example-{number + 2}")
    page = client.get(address).text
    assert "8 of 9: 89%, 95% interval 56% to 98%" in page
    assert page.count("rightly dropped</span>") == 8
    assert page.count("wrongly dropped</span>") == 1
    assert ["too_short", "filter", "10", "16.7%", "8 of 9: 89%, 95% interval 56% to 98%"] in _rules(
        client.get("/dropped").text
    )
    client.post(buttons[16], headers=_ORIGIN)  # changes the last one
    assert "9 of 9" in client.get(address).text
    lines = [json.loads(line) for line in (corpus / "labels.jsonl").read_text().splitlines()]
    assert len(lines) == 10
    assert set(lines[0]) == {"id", "url", "stage", "reason", "label", "date"}
    assert lines[0]["url"].startswith("http://second.example/")


def test_no_label_of_two_windows_is_lost(client: TestClient, corpus: Path) -> None:
    buttons = _buttons(client.get("/dropped?stage=dedup&reason=near_duplicate").text)[::2]
    with concurrent.futures.ThreadPoolExecutor(10) as windows:
        answers = list(windows.map(lambda button: client.post(button, headers=_ORIGIN), buttons))
    assert {answer.status_code for answer in answers} == {303}
    assert len(read_labels(str(corpus))["dedup", "near_duplicate"]) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "good"}, "expected rightly_dropped or wrongly_dropped"),
        ({"id": "none"}, "filter did not drop this document for too_short"),
        ({"reason": "near_duplicate"}, "filter did not drop this document"),
        ({"seed": "x"}, "is not a whole number"),
    ],
)
def test_a_label_that_is_not_valid_is_refused(
    client: TestClient, corpus: Path, change: dict[str, str], message: str
) -> None:
    label = {"stage": "filter", "reason": "too_short", "id": id_of(41), "label": "rightly_dropped", "seed": "1"}
    answer = client.post("/labels", params=label | change, headers=_ORIGIN)
    assert answer.status_code == 400
    assert message in answer.text
    assert not (corpus / "labels.jsonl").exists()
    assert client.get("/labels", params=label).status_code == 405
    assert client.post("/labels", params=label, headers={"origin": "http://evil.example"}).status_code == 403


def test_labels_of_a_corpus_in_an_object_store(corpus: Path, bucket: str) -> None:
    for path in corpus.rglob("*"):
        if path.is_file():
            storage.write_bytes(f"{bucket}/corpus/{path.relative_to(corpus)}", path.read_bytes())
    client = open_client(f"{bucket}/corpus")
    assert "40 documents" in client.get("/documents?sort=words").text
    for button in _buttons(client.get("/dropped?stage=filter&reason=too_short").text)[:4:2]:
        assert client.post(button, headers=_ORIGIN).status_code == 303
    assert "2 of 2" in client.get("/dropped").text
    assert len(storage.read_bytes(f"{bucket}/corpus/labels.jsonl").splitlines()) == 2


def test_a_damaged_list_of_labels_is_named_with_its_line(client: TestClient, corpus: Path) -> None:
    (corpus / "labels.jsonl").write_text('{"id": "a"}\n')
    answer = client.get("/dropped")
    assert answer.status_code == 400
    assert "labels.jsonl:1: is not a label" in answer.text
    with pytest.raises(InputError):
        read_labels(str(corpus))


def test_unknown_rules_are_named(client: TestClient) -> None:
    answer = client.get("/dropped?stage=dedup&reason=<b>too_short")
    assert answer.status_code == 400
    assert "dedup dropped for &lt;b&gt;too_short" in answer.text


def test_documents_without_a_corpus_have_no_labels(corpus: Path) -> None:
    client = open_client([str(corpus / "dedup"), str(corpus / "filter")])
    page = client.get("/dropped?stage=dedup&reason=near_duplicate").text
    assert "Text 50 begins here." in page
    assert "<form" not in page.partition("<main")[2].partition("<dialog")[0]
    query = {"stage": "dedup", "reason": "near_duplicate", "id": id_of(50), "label": "rightly_dropped"}
    assert "browse one with --corpus" in client.post("/labels", params=query, headers=_ORIGIN).text


def test_records_that_are_not_documents_are_examples_too(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"id": "a", "text": "one"}\n{"id": "<b>"}\n')
    client = open_client([str(tmp_path / "own.jsonl")])
    [[reason, stage, *_]] = _rules(client.get("/dropped").text)
    assert stage == "input"
    assert "<b>" not in client.get(f"/dropped?stage=input&reason={reason}").text
