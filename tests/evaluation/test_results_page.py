"""The page and the combined results of all tasks in an output folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from small_model import write_model

from pipelines.errors import InputError
from pipelines.evaluation.results_page import read_results
from pipelines.reports.evaluation import data_notes, format_figure, metric_title, paper_texts, render_evaluation_page
from webtext_cli.main import main


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an output folder with three tasks, of which one has truncated examples."""
    folder = tmp_path_factory.mktemp("page")
    model = write_model(folder / "model")
    words = " ".join(f"word{number}" for number in range(30))
    texts = ["a short <b>passage</b>", words, "another short passage", f"{words} again"]
    (folder / "lambada.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "wiki.txt").write_text("a text of several words\n" * 5)
    own = (
        '[task]\nkind = "choice"\ntitle = "<Mine>"\ndata = "own.jsonl"\nprompt = "Q: {q}"\nchoices = [" {a}", " {b}"]\n'
    )
    (folder / "own.toml").write_text(own)
    (folder / "own.jsonl").write_text('{"q": "x", "a": "y", "b": "z", "gold": 0}\n' * 3)
    tasks = [f"lambada={folder / 'lambada.jsonl'}", f"wikitext-2={folder / 'wiki.txt'}", str(folder / "own.toml")]
    arguments = ["evaluate", "--model", model, "--output", str(folder / "out"), "--device", "cpu", "-q"]
    assert main([*arguments, *(part for task in tasks for part in ("--task", task))]) == 0
    return folder / "out"


def test_the_combined_results_are_those_of_all_tasks(output: Path) -> None:
    combined = json.loads((output / "results.json").read_text())["tasks"]
    assert list(combined) == ["lambada", "own", "wikitext-2"]
    for name, result in combined.items():
        assert result == json.loads((output / name / "results.json").read_text())
    assert combined["lambada"]["metrics"][0]["kind"] == "perplexity"
    assert combined["lambada"]["metrics"][0]["columns"] == ["nll", "words"]


def test_the_page_has_every_figure_next_to_those_of_the_paper(output: Path) -> None:
    page = (output / "evaluation.html").read_text()
    cells = re.findall(r"<td[^>]*>(?:<strong>)?(.*?)(?:</strong>)?</td>", page)
    for result in read_results(str(output)).values():
        for figure in result["metrics"]:
            row = [format_figure(figure["value"]), format_figure(figure["error"])]
            assert "|".join([metric_title(figure), *row]) in "|".join(cells)
        for name, paper in result["paper"].items():
            # With an asterisk: these files are not the known test sets.
            assert all("figure only" if value is None else f"<td>{value:g}*</td>" in page for value in paper), name
    assert "* lambada: lambada.jsonl (4 examples) is not a known copy of the test set" in page
    # Chance: two choices.
    assert cells[cells.index("accuracy", cells.index("accuracy") + 1) :][4:6] == ["0.5", "3"]
    assert "Known as" not in page
    assert "<footer><p>webtext evaluate. Options: lambada in float32, own in float32" in page
    assert "&lt;Mine&gt;" in page
    assert "<Mine>" not in page
    assert page.count("<figure") == 3  # perplexity and accuracy of LAMBADA, perplexity of WikiText-2
    assert page.count('<circle class="reference"') == 12
    assert page.count('<circle class="primary"') == 3


def test_the_page_has_files_counts_choices_and_truncated_examples(output: Path) -> None:
    page = (output / "evaluation.html").read_text()
    for result in read_results(str(output)).values():
        assert all(facts["sha256"] in page for facts in result["files"])
        for name, choice in result["choices"].items():
            assert f'<th scope="row">{name}</th>' in page
            assert f'<td class="text">{choice["origin"]}</td>' in page
    assert "2 examples did not fit into the context of 64 tokens and were truncated. Without these: " in page
    assert re.findall(r'<th scope="row">(lambada\.jsonl:\d+)</th>', page) == ["lambada.jsonl:2", "lambada.jsonl:4"]
    assert "lines with fallback: 5" in page


def test_shares_have_a_linear_axis(output: Path) -> None:
    result = read_results(str(output))["lambada"]
    small = [figure | {"value": 0.001} for figure in result["metrics"] if figure["name"] == "accuracy"]
    page = render_evaluation_page({"lambada": result | {"metrics": small}}, {"lambada": []}, {"lambada": []})
    ticks = re.findall(r'<text class="tick before"[^>]*>([^<]*)</text>', page)
    assert ticks == ["0", "0.2", "0.4", "0.6", "0.8"]


def test_the_data_of_a_result_are_named_next_to_the_figures_of_the_paper(output: Path) -> None:
    result = read_results(str(output))["lambada"]
    [file] = result["files"]
    known = result | {"files": [file | {"known_as": "OpenAI's test set"}]}
    assert data_notes([known]) == ["lambada: lambada.jsonl (4 examples) is OpenAI's test set."]
    assert paper_texts(known, "accuracy")[0] == "0.4599"
    assert paper_texts(known | {"limit": 3}, "accuracy")[0] == "0.4599*"
    assert data_notes([known | {"limit": 4}])[0].startswith(
        "* lambada (limit 4): lambada.jsonl (the first 4 examples) is"
    )
    assert data_notes([result | {"paper": {}}]) == []


def test_scoring_again_writes_the_same_page(output: Path) -> None:
    names = ("results.json", "evaluation.html")
    before = [(output / name).read_bytes() for name in names]
    for name in names:
        (output / name).unlink()
    own = output.parent / "own.toml"
    assert main(["evaluate", "--task", str(own), "--output", str(output), "--rescore", "-q"]) == 0
    assert [(output / name).read_bytes() for name in names] == before


def test_unfinished_tasks_are_left_out(output: Path) -> None:
    (output / "ptb").mkdir()
    (output / "ptb" / "results.json").write_text("{}")
    # Nor are folders of other stages, whose results have another form.
    (output / "report").mkdir()
    (output / "report" / "results.json").write_text("{}")
    manifest = (output / "own" / "manifest.json").read_text()
    (output / "report" / "manifest.json").write_text(manifest.replace('"evaluate"', '"overlap-report"', 1))
    assert list(read_results(str(output))) == ["lambada", "own", "wikitext-2"]
    with pytest.raises(InputError, match="has no results of `webtext evaluate`"):
        read_results(str(output / "ptb"))
