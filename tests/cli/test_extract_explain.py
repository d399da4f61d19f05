"""`webtext extract --explain` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stages"))

from extract_run import HTML_HEADERS, html_page, warc_bytes, write_pages

from pipelines.algorithms.blocks.features import NAMES
from pipelines.algorithms.blocks.model import KINDS, BlockModel
from pipelines.algorithms.blocks.text_features import values_table
from pipelines.algorithms.web.urls import id_of_url
from pipelines.errors import InputError
from pipelines.stages.extract.config import ExtractConfig
from pipelines.stages.extract.explain import GROUPS, explain, group_of
from webtext_cli.main import main

_URL = "http://example.org/0/1"


class _Network(NamedTuple):
    low: Any
    high: Any


def _evaluate(network: _Network, features: Any, *_: Any) -> tuple[Any, Any]:
    """Judge by the share of words in links alone; every page is a forum."""
    odds = 3 - 6 * features[:, NAMES.index("words in links")]
    return np.stack([odds, odds], axis=1), np.array([kind == "forum" for kind in KINDS], np.float32)


@pytest.fixture(autouse=True)
def _small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = np.zeros(len(NAMES), np.float32)
    empty = values_table(np.zeros(0, np.uint32), np.zeros(0, np.float32))
    model = BlockModel(_Network(limits, limits + 1), empty, empty)  # type: ignore[arg-type]
    for module in ("pipelines.algorithms.blocks.model", "pipelines.stages.extract.explain"):
        monkeypatch.setattr(f"{module}.load_model", lambda _: model)
        monkeypatch.setattr(f"{module}.evaluate", _evaluate)


def _output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(["extract", "--explain", *arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_each_block_has_its_probability_and_what_moved_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "a.html"
    page.write_text(html_page("Tame\ue000", sentences=1))
    lines = _output(capsys, str(page)).splitlines()
    home = next(line for line in lines if line.startswith(" Home"))
    assert home.split()[2:5] == ["1", "–", "0.05"]
    assert "text -" in home
    text = next(line for line in lines if line.startswith(" The river Tame"))
    assert " yes 0.95 " in " ".join(text.split())
    assert "text +" in text
    end = lines.index("page        a.html")
    assert lines[end + 1 : end + 3] == ["title       River Tame\ue000", "type        forum"]
    assert lines[end + 3].startswith("confidence  0.")
    assert lines[end + 4].startswith("outcome     kept, ")
    assert lines[end + 6] == "River Tame"
    assert lines[end - 2].startswith("p: probability that the block is main content; ")


def _page(*blocks: str, head: str = "") -> str:
    return f"<html><head>{head}</head><body>{''.join(blocks)}</body></html>"


@pytest.mark.parametrize(
    ("html", "why"),
    [
        ("", "no block is kept: the page is empty"),
        (_page("<p><a href=/>Home</a></p>"), "no block is kept: its estimated F1, 0.09, is too low"),
        (_page("<p>The river rises in the hills.</p>"), "no block is kept: too little text (characters: 24)"),
        (
            _page("<p><a href=/>Home</a></p>", head=f'<meta name="description" content="{"A river of hills. " * 8}">'),
            "no block is kept: too little text, all from the metadata (characters: 112)",
        ),
    ],
)
def test_why_no_block_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str], html: str, why: str) -> None:
    page = tmp_path / "a.html"
    page.write_text(html)
    assert f"outcome     dropped as empty_text ({why})" in _output(capsys, str(page)).splitlines()


def test_a_block_that_repeats_another_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"<p>{'The river rises in the hills. ' * 9}</p>"
    page = tmp_path / "a.html"
    named = "<i class='many names of the elements'></i>" * 150  # without them, equal paragraphs are kept
    page.write_text(_page(named, text, text, "<p><a href=/>Home</a></p>"))
    lines = _output(capsys, str(page)).splitlines()
    shown = [" ".join(line.split()) for line in lines if line.startswith(" The river")]
    assert [" yes 0.95 " in shown[0], " repeats 0.95 " in shown[1]] == [True, True]
    assert any(line.startswith("repeats: dropped") for line in lines)
    blocks = json.loads(_output(capsys, str(page), "--json"))["blocks"]
    assert [(block["is_kept"], block["is_repetition"]) for block in blocks] == [
        (True, False),
        (False, True),
        (False,) * 2,
    ]


def test_the_url_is_no_cause_on_a_page_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.stages.extract.explain._SHOWN_GROUPS", len(GROUPS) + 1)
    page = tmp_path / "a.html"
    for head, is_named in (("", False), ('<meta property="og:url" content="https://a.example/b">', True)):
        page.write_text(_page("<p>The river rises in the hills.</p>", head=head))
        [block] = json.loads(_output(capsys, str(page), "--json"))["blocks"]
        assert ("URL" in block["moved_by"]) == is_named
        assert "page" in block["moved_by"]


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "a.html"
    page.write_text(html_page("Tame", sentences=2))
    shown = json.loads(_output(capsys, str(page), "--json"))
    assert (shown["id"], shown["url"], shown["title"], shown["page_type"]) == (
        "a.html",
        None,
        "River Tame",
        "forum",
    )
    assert [block["is_kept"] for block in shown["blocks"]] == [False, True, True, True]
    assert shown["text"] == "\n\n".join(block["text"] for block in shown["blocks"][1:])
    # All other groups change nothing in this model; `text` comes first.
    for block in shown["blocks"]:
        (first, change), *others = block["moved_by"].items()
        assert first == "text"
        # In the middle of the limits, 0 and 1 of the square root, a quarter of the words is in links.
        assert change == (1.5 if block["is_kept"] else -4.5)
        assert {change for _, change in others} == {0.0}
    assert shown["words"] == len(shown["text"].split())


def test_drop_reasons_are_those_of_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "a.html"
    page.write_text(html_page("Tame", sentences=1))
    lines = _output(capsys, str(page), "--min-words", "5000").splitlines()
    assert lines[-1].startswith("outcome     dropped as too_short (")
    page.write_bytes(b"\x00\x01\x02\x03" * 100)
    shown = json.loads(_output(capsys, str(page), "--json"))
    assert (shown["reason"], shown["blocks"], shown["text"]) == ("undecodable", [], "")


def test_pages_of_a_corpus_by_url_and_id_and_of_a_warc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    responses = [
        [(f"http://example.org/{n}/{i}", html_page(f"{n}/{i}").encode(), HTML_HEADERS) for i in (0, 1)] for n in (0, 1)
    ]
    write_pages(tmp_path / "fetch", responses)
    for target in (_URL, id_of_url(_URL)):
        shown = json.loads(_output(capsys, target, "--corpus", str(tmp_path), "--json"))
        assert (shown["url"], shown["title"]) == (_URL, "River 0/1")
    (tmp_path / "crawl.warc.gz").write_bytes(warc_bytes(responses[1])[0])
    shown = json.loads(_output(capsys, "http://example.org/1/1", "-i", str(tmp_path / "crawl.warc.gz"), "--json"))
    assert shown["title"] == "River 1/1"
    assert not (tmp_path / "extract").exists()


def test_an_html_file_is_found_by_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "a.html").write_text(html_page(str(number)))
    assert explain(ExtractConfig(), "2/a.html", pages=[str(tmp_path)])["title"] == "River 2"
    with pytest.raises(InputError, match=r"3/a\.html: no page with this name, URL or id in /"):
        explain(ExtractConfig(), "3/a.html", pages=[str(tmp_path)])
    assert json.loads(_output(capsys, "2/a.html", "-i", str(tmp_path), "--json"))["id"] == "2/a.html"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.html"], "missing.html: no such file; --explain takes an HTML file, or the URL or id of a page"),
        (["http://example.org/other"], "http://example.org/other: no page with this name, URL or id in "),
        (["http://gone.example/0"], "http://gone.example/0: no page with this name, URL or id in "),
        (["0" * 32], f"{'0' * 32}: no page with this name, URL or id in "),
        (["folder"], "folder: is a folder; --explain takes an HTML file, or the URL or id of a page in --input"),
        (["crawl.warc"], "crawl.warc: is an archive; give the URL of a page, and the archive with --input"),
        (["notes.txt"], "notes.txt: unknown file type; supported are .html"),
        (["a.html", "--extractor", "trafilatura"], "of fast; --extractor trafilatura has none"),
        (["missing.html", "--corpus", "elsewhere"], "missing.html: no such file; --explain takes an HTML file"),
        (["missing.html", "-i", "a.html"], "missing.html: no page with this name, URL or id in a.html"),
        ([_URL, "--corpus", "elsewhere"], "elsewhere: is not a corpus (no such folder)"),
    ],
)  # fmt: skip
def test_wrong_input(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pages(tmp_path / "fetch", [[(_URL, html_page("a").encode(), HTML_HEADERS)]])
    (tmp_path / "folder").mkdir()
    for name in ("a.html", "crawl.warc", "notes.txt"):
        (tmp_path / name).write_text(html_page("a"))
    corpus = [] if "--corpus" in arguments else ["--corpus", str(tmp_path)]
    assert main(["extract", "--explain", *arguments, *corpus]) != 0
    assert message in capsys.readouterr().err


def test_every_group_has_features() -> None:
    groups = {group: [name for name in NAMES if group_of(name) == group] for group in [*GROUPS, "text"]}
    assert all(groups.values())
    assert "page URL digits" in groups["URL"]
    assert {"words in links", "log words", "commas per word"} <= set(groups["text"])
    assert "links in container 0" in groups["containers"]


def test_an_html_file_is_found_by_the_url_that_it_declares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        link = f'<link rel="canonical" href="https://site.example/{name}?utm_source=x">'
        (tmp_path / f"{name}.html").write_text(_page("<p>The river rises in the hills.</p>", head=link))
    shown = json.loads(_output(capsys, "https://SITE.example/b", "-i", str(tmp_path), "--json"))
    assert (shown["id"], shown["url"]) == ("b.html", "https://site.example/b")
    assert main(["extract", "--explain", "https://site.example/d", "-i", str(tmp_path)]) == 1
    assert f"https://site.example/d: no page with this name, URL or id in {tmp_path}\n" in capsys.readouterr().err
