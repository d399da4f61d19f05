"""`webtext extract --format markdown`, and the format of the texts in the manifests of later stages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from extract_run import html_page, rows

from pipelines.corpus.export import export_text
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.records.document_options import DocumentConfig
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import remove_wikipedia
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")

_LISTS = "<h2>Towns</h2><ul><li>Upper town<ul><li>the *old* bridge</ul><li>Lower town</ul><pre>  level = 3</pre>"


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "a.html").write_text(html_page("a").replace("</article>", f"{_LISTS}</article>"))
    (folder / "b.html").write_text(html_page("b"))
    return folder


def _extract(pages: Path, output: Path, *options: str) -> int:
    return main(["extract", str(pages), "-o", str(output), "--workers", "1", *options])


@pytest.fixture
def extracted(pages: Path, tmp_path: Path) -> tuple[Path, Path]:
    for name in ("text", "markdown"):
        assert _extract(pages, tmp_path / name, "--format", name) == 0
    return tmp_path / "text", tmp_path / "markdown"


def _manifest(folder: Path) -> dict[str, object]:
    manifest: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return manifest


def test_markdown_has_the_same_blocks_with_their_form(extracted: tuple[Path, Path]) -> None:
    text, markdown = ({row["id"]: row["text"] for row in rows(folder, "documents")} for folder in extracted)
    assert text.keys() == markdown.keys() == {"a.html", "b.html"}
    assert "\n\nTowns\n\nUpper town\nthe *old* bridge\nLower town\n\n  level = 3" in text["a.html"]
    expected = "\n\n## Towns\n\n- Upper town\n  - the \\*old\\* bridge\n- Lower town\n\n```\n  level = 3\n```"
    assert expected in markdown["a.html"]
    assert [_manifest(folder)["text_format"] for folder in extracted] == ["text", "markdown"]


def test_another_format_is_another_result(extracted, pages, capsys) -> None:
    assert _extract(pages, extracted[0], "--format", "markdown") != 0
    assert 'format was "text", is now "markdown"' in capsys.readouterr().err


def test_newspaper_has_no_markdown(pages, tmp_path, capsys) -> None:
    assert _extract(pages, tmp_path / "out", "--format", "markdown", "--extractor", "newspaper") == 2
    assert "--format has no effect without --extractor fast or trafilatura" in capsys.readouterr().err
    assert _extract(pages, tmp_path / "out", "--content", "article", "--extractor", "trafilatura") == 2
    assert "--content has no effect without --extractor fast" in capsys.readouterr().err


def test_markdown_of_trafilatura(pages, tmp_path) -> None:
    pytest.importorskip("trafilatura", reason="the extra trafilatura")
    assert _extract(pages, tmp_path / "out", "--format", "markdown", "--extractor", "trafilatura") == 0
    assert any("## Towns" in row["text"] for row in rows(tmp_path / "out", "documents"))


def test_explain_shows_the_markdown(pages, capsys) -> None:
    assert main(["extract", "--explain", str(pages / "a.html"), "--format", "markdown"]) == 0
    assert "## Towns\n\n- Upper town\n  - the" in capsys.readouterr().out


def test_later_stages_pass_the_format_on_and_refuse_to_mix(extracted, tmp_path) -> None:
    text, markdown = map(str, extracted)
    unique = str(tmp_path / "unique")
    dedup(DedupConfig(), documents=markdown, output=unique, options=RunOptions())
    assert read_manifest(unique).text_format == "markdown"
    named = [f"{unique}/documents-*.parquet", f"{text}/documents-*.parquet"]
    mixed = f"{unique}: its texts are markdown, those of {text} are text; extract both with the same --format"
    for stage, config in ((remove_wikipedia, RemoveWikipediaConfig()), (dedup, DedupConfig())):
        with pytest.raises(InputError) as error:
            stage(config, documents=named, output=str(tmp_path / "mixed"), options=RunOptions())
        assert str(error.value).startswith(mixed)
    with pytest.raises(InputError, match="its texts are markdown"):
        export_text(named, str(tmp_path / "mixed.jsonl"), None, None, DocumentConfig(), RunOptions())
    with pytest.raises(InputError, match="its texts are markdown, those of"):
        dedup(DedupConfig(against=(text,)), documents=unique, output=str(tmp_path / "mixed"), options=RunOptions())
    assert not (tmp_path / "mixed").exists()


def test_files_of_others_can_be_combined_with_any_format(extracted, tmp_path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"text": "A text that is not of webtext."}) + "\n")
    for folder in extracted:
        output = tmp_path / f"both-{folder.name}"
        documents = [str(own), f"{folder}/documents-*.parquet"]
        dedup(DedupConfig(), documents=documents, output=str(output), options=RunOptions())
        assert _manifest(output)["text_format"] == folder.name
    dedup(DedupConfig(), documents=str(own), output=str(tmp_path / "other"), options=RunOptions())
    assert "text_format" not in _manifest(tmp_path / "other")


def test_an_older_result_of_extract_is_plain_text(extracted, tmp_path) -> None:
    text, markdown = extracted
    manifest = _manifest(text)
    del manifest["text_format"]
    (text / "manifest.json").write_text(json.dumps(manifest))
    documents = [f"{folder}/documents-*.parquet" for folder in (text, markdown)]
    with pytest.raises(InputError, match="its texts are text"):
        dedup(DedupConfig(), documents=documents, output=str(tmp_path / "mixed"), options=RunOptions())
